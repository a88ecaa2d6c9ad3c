"""The async client: ``async with deodar.aio.connect() as client: await client.get(b"cedar")``."""

from __future__ import annotations

from collections.abc import Sequence

from deodar.client.aio import AsyncClient, AsyncScan


def connect(
    endpoint: str | Sequence[str] = "127.0.0.1:7400",
    *,
    smart: bool = True,
    timeout: float = 10.0,
    connections: int = 1,
) -> AsyncClient:
    """An async client, for one event loop; arguments as of `deodar.connect`.

    Nothing is connected before the first call; ``await connect()`` is allowed and connects nothing.
    """
    return AsyncClient(endpoint, smart=smart, timeout=timeout, connections=connections)


__all__ = ["AsyncClient", "AsyncScan", "connect"]
