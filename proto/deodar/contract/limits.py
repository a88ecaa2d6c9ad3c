"""Every public bound, with its unit.  The engine's own are in `engine/limits.pxd`; a test holds the
two together."""

from __future__ import annotations

from typing import Final

KEY_BYTES_MAX: Final = 65_536
VALUE_BYTES_MAX: Final = 67_108_864
BATCH_OPERATIONS_MAX: Final = 10_000
# Keys and values of one batch together; a single operation may be larger by itself.
BATCH_BYTES_MAX: Final = 16_777_216
# 100 years: far below the 2**63 where deadlines would overflow.
TTL_MS_MAX: Final = 3_155_760_000_000
SCAN_PAGE_RECORDS_MAX: Final = 1_000
SCAN_PAGE_BYTES: Final = 1_048_576
# Largest message on the wire: the largest value, its key, and room for the rest.
MESSAGE_BYTES_MAX: Final = VALUE_BYTES_MAX + KEY_BYTES_MAX + 65_536

DEFAULT_TABLE: Final = "default"
ROUTER_PORT: Final = 7400
NODE_PORT: Final = 7401
DEFAULT_ENDPOINT: Final = f"127.0.0.1:{ROUTER_PORT}"
