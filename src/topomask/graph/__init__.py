"""Graphs, and functions that build common ones."""

from topomask.graph.builders import cycle_graph, grid_graph, hypercube_graph, knn_graph, path_graph
from topomask.graph.graph import Graph, Normalization

__all__ = ["Graph", "Normalization", "cycle_graph", "grid_graph", "hypercube_graph", "knn_graph", "path_graph"]
