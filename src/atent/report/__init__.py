"""Tables and figures made from rows, and their output on a terminal. Nothing here runs a network."""
