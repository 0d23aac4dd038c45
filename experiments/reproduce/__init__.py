"""The tables and figures of the papers: published values, our results, and which claims hold."""
