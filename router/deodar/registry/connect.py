"""Opening the registry that a URL names."""

from __future__ import annotations

import re
from typing import Final

import structlog

from .backoff import Backoff
from .config import RegistryConfig
from .etcd import EtcdRegistry
from .interface import OutcomeUnknown, Registry, RegistryUnavailable
from .lease import now_ms
from .remote import RemoteRegistry

# A key that nobody writes: reading it proves that the registry has a quorum and lets us in.
PROBE_KEY: Final = "/deodar/probe"

# First releases without stale reads after a pause of the process (etcd-io/etcd#20418).
SOUND_ETCD: Final = {(3, 4): 42, (3, 5): 28, (3, 6): 9}

_log = structlog.get_logger(__name__)


async def open_registry(config: RegistryConfig) -> Registry:
    """The registry, once it has answered.

    Raises RegistryUnavailable when it has not after `start_timeout_s`, RegistryRefused when it does
    not let us in, OSError when a certificate file cannot be read.
    """
    registry = EtcdRegistry(config) if config.kind == "etcd" else RemoteRegistry(config)
    end_ms = now_ms() + config.start_timeout_s * 1000
    backoff = Backoff()
    try:
        while True:
            try:
                await registry.get(PROBE_KEY)
                break
            except (RegistryUnavailable, OutcomeUnknown) as error:
                left_s = (end_ms - now_ms()) / 1000
                _log.warning("registry not reached", url=config.url, error=str(error))
                if left_s <= 0:
                    raise RegistryUnavailable(
                        f"{config.url}: no answer for {config.start_timeout_s:g} s: {error}"
                    ) from error
                await backoff.wait(at_most_s=left_s)
        if isinstance(registry, EtcdRegistry):
            _log_version(await registry.version())
    except BaseException:  # also when cancelled: nobody else could close it
        await registry.close()
        raise
    return registry


def _log_version(version: str) -> None:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        _log.warning("etcd of an unknown version", version=version)
        return
    major, minor, patch = (int(part) for part in match.groups())
    if (major, minor) < (3, 7) and patch < SOUND_ETCD.get((major, minor), 1 << 30):
        _log.warning("etcd may answer stale reads after a pause: upgrade it", version=version)
    else:
        _log.info("registry reached", version=version)
