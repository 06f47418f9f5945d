"""What a training, an evaluation and a certification will take, before they run: passes, operations, memory, time."""
