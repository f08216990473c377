"""Views of graphs and functions, the op tables, and the trace of every use of every variable."""
