"""``python -m deodar.client.cli`` is ``deodar``."""

from .main import run

run()
