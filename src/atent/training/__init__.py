"""Training: the function `fit`, one step, its state in a checkpoint, and the alarms."""
