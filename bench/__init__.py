"""Measurements of Deodar beside its peers, run from the checkout as ``python -m bench``."""
