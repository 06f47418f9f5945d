"""Attacks of other libraries behind our protocol: Foolbox, ART, AutoAttack. They need the extra `attacks`."""
