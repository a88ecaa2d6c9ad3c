"""Options that many commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

import deodar
from deodar.client.admin import AdminClient
from deodar.client.client import Client
from deodar.contract.limits import DEFAULT_TABLE

from .encoding import Encoding
from .output import set_json


class DurabilityName(StrEnum):
    """When a write is acknowledged."""

    BUFFERED = "buffered"
    REPLICATED = "replicated"
    DURABLE = "durable"


Endpoint = Annotated[
    str,
    typer.Option(
        envvar="DEODAR_ENDPOINT", help="HOST:PORT of a router; several with commas between."
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", callback=set_json, is_eager=True, help="Print JSON, errors as well."),
]
Table = Annotated[str, typer.Option(help="Table.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that the call may take.")]
ValueEncoding = Annotated[Encoding, typer.Option(help="How keys and values are written.")]
KeyEncoding = Annotated[Encoding, typer.Option(help="How KEY is written.")]
Key = Annotated[str, typer.Argument(help="1 to 65,536 bytes; see --key-encoding.")]
Durability = Annotated[
    DurabilityName | None,
    typer.Option(help="What the acknowledgement promises; default: the table's."),
]
IfVersion = Annotated[
    int | None, typer.Option(min=0, help="Only over the record with this version.")
]

DEFAULT_TABLE_NAME = DEFAULT_TABLE


def connect(endpoint: str, timeout: float = 10.0) -> Client:
    return deodar.connect(endpoint, timeout=timeout)


def connect_admin(endpoint: str, timeout: float = 10.0) -> AdminClient:
    return AdminClient(endpoint, timeout=timeout)


def durability_of(name: DurabilityName | None) -> deodar.Durability | None:
    return None if name is None else name.value
