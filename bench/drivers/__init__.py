"""Drivers of the stores that are measured: C loops over C calls, built on demand by `bench.build`.

The sources are here; the extension modules made from them are below ``build/bench``.
"""

from bench.build import DRIVERS_BUILT

__path__.append(str(DRIVERS_BUILT))
