"""The tables and figures of the papers: what they say, what comes out here, and which claims hold."""
