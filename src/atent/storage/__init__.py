"""What is kept on the disk: files written safely, run folders, rows of attacks and certificates, attacked images."""
