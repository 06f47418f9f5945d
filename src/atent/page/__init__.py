"""The report of runs as one self-contained page of HTML. It reads run folders and runs no network."""
