"""The paper's tables and figures: what they consist of (data), what is missing (one engine), and how they are shown."""
