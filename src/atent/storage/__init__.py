"""What is stored on disk: files written atomically, run folders, rows of attacks and certificates, attacked images."""
