"""What is made of rows: tables, figures, and how a terminal shows them. Nothing here runs a network."""
