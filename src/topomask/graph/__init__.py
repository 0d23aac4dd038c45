"""Graphs, and functions that build common ones."""

from topomask.graph.builders import cycle_graph, grid_graph, hypercube_graph, knn_graph, path_graph
from topomask.graph.graph import Graph, Normalization
from topomask.graph.records import per_graph

__all__ = ["Graph", "Normalization", "cycle_graph", "grid_graph", "hypercube_graph", "knn_graph", "path_graph"]
__all__ += ["per_graph"]
