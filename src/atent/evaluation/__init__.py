"""Evaluation: the target, its attacks and certificates, suites of attacks, and checks that an attack did not fail."""
