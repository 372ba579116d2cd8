"""The commands `headrace broker start`, `stop`, `status` and `grant`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.streams.devbroker.cluster import ClusterStatus, DevBroker
from headrace.streams.devbroker.errors import DevBrokerError, DirectoryRefusedError
from headrace.streams.devbroker.security import ADMIN

_DEFAULT_DIRECTORY = Path(".headrace", "broker")
_DEFAULT_PORT = 9092
_EXIT_NOT_SERVING = 3

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _directory_option(command: _Command) -> _Command:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        default=_DEFAULT_DIRECTORY,
        show_default=True,
        help="Directory of data and logs.",
    )(command)


def _shape_options(command: _Command) -> _Command:
    port = click.option(
        "--port",
        type=click.IntRange(0, 65_000),
        help=f"Port of the first node; 0 chooses free ports.  [default: {_DEFAULT_PORT}]",
    )
    nodes = click.option(
        "--nodes", type=click.Choice(["1", "3"]), help="Number of nodes.  [default: 1]"
    )
    return nodes(port(command))


@click.group()
def broker() -> None:
    """Run a real Kafka on this machine, for development."""


@broker.command()
@_shape_options
@click.option(
    "--secure", is_flag=True, help="Require TLS, passwords and ACLs, with generated certificates."
)
@_directory_option
def start(nodes: str | None, port: int | None, secure: bool, directory: Path) -> None:
    """Start the broker unless it is running.

    A secured broker has a user `admin` with all permissions. `headrace broker grant` creates other
    users.
    """
    with _click_errors():
        status = DevBroker(directory).status()
        ran = status.serving
        if port is None:
            # Without --port, a running broker may use any port.
            port = 0 if any(node.pid for node in status.nodes) else _DEFAULT_PORT
        cluster = DevBroker(
            directory, nodes=int(nodes or 1), port=port, secure=secure, report=click.echo
        )
        bootstrap = cluster.start()
    click.echo(f"{'Already running' if ran else 'Started'}: {bootstrap}")
    click.echo(f"Data: {cluster.directory}")
    for node in cluster.status().nodes:
        click.echo(f"Logs of node {node.id}: {node.logs}")
    if secure:
        _show_settings(cluster, ADMIN)


@broker.command()
@click.argument("user")
@click.option(
    "--application", "application_id", metavar="ID", help="Application id of the granted ACLs."
)
@click.option(
    "--source", "sources", multiple=True, metavar="TOPIC", help="Topic that it reads; repeatable."
)
@click.option(
    "--output", "outputs", multiple=True, metavar="TOPIC", help="Topic that it writes; repeatable."
)
@_directory_option
def grant(
    user: str,
    application_id: str | None,
    sources: tuple[str, ...],
    outputs: tuple[str, ...],
    directory: Path,
) -> None:
    """Create a user with the ACLs of an application.

    These are the ACLs that `headrace acls` prints. The ACLs that the user already has remain.
    """
    from headrace.streams.kafka.acls import of_application

    if application_id is None and (sources or outputs):
        raise click.UsageError("--source and --output require --application.")
    rights = []
    if application_id is not None:
        rights = of_application(application_id, sources=sources, outputs=outputs)
    with _click_errors():
        cluster = DevBroker(directory)
        cluster.grant(user, rights)
        for right in rights:
            click.echo(f"Granted User:{user}: {right}")
        _show_settings(cluster, user)


def _show_settings(cluster: DevBroker, user: str) -> None:
    path = cluster.settings_file(user)
    click.echo(f"Settings of a client as {user}, for --config, in {path}:")
    for name, text in cluster.settings(user).items():
        click.echo(f"  {name} = {'***' if name == 'sasl.password' else text}")


@broker.command()
@_shape_options
@_directory_option
def stop(nodes: str | None, port: int | None, directory: Path) -> None:
    """Stop the broker; its data remain."""
    with _click_errors():
        cluster = DevBroker(directory)
        _check_shape(cluster.status(), directory, nodes=nodes, port=port)
        ran = cluster.stop()
    click.echo(f"{'Stopped' if ran else 'Not running'}: {cluster.directory}")


@broker.command()
@_shape_options
@_directory_option
def status(nodes: str | None, port: int | None, directory: Path) -> None:
    """Print the running nodes; exit status 3 unless all serve."""
    with _click_errors():
        cluster = DevBroker(directory)
        seen = cluster.status()
        _check_shape(seen, directory, nodes=nodes, port=port)
    if not seen.nodes:
        click.echo(f"No broker in {cluster.directory}. Start one: headrace broker start")
    for node in seen.nodes:
        process = f" (process {node.pid})" if node.pid else ""
        click.echo(f"node {node.id} {node.endpoint} {node.state.value}{process}")
    if not seen.serving:
        sys.exit(_EXIT_NOT_SERVING)


def _check_shape(
    seen: ClusterStatus, directory: Path, *, nodes: str | None, port: int | None
) -> None:
    if not seen.nodes:
        return
    first = seen.nodes[0].endpoint
    if nodes is not None and int(nodes) != len(seen.nodes):
        raise DirectoryRefusedError(
            f"the broker in {directory} has {len(seen.nodes)} nodes. Omit --nodes, or set --dir."
        )
    if port and not first.endswith(f":{port}"):
        raise DirectoryRefusedError(
            f"the broker in {directory} is at {first}. Omit --port, or set --dir."
        )


@contextmanager
def _click_errors() -> Iterator[None]:
    try:
        yield
    except DevBrokerError as error:
        raise click.ClickException(str(error)) from error
