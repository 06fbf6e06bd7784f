"""`seawall config show`: aligned text, JSON, and the description of every key."""

import json

from click.testing import CliRunner

from seawall.cli.config import config
from seawall.config import SETTINGS, load

TEXT = """\
kernels.cache_dir         ""              default
disk.backend              uring           environment SEAWALL_DISK_BACKEND
disk.ring_entries         256             default
disk.direct_sync          auto            default
storage.wal_file_size     67108864        default
storage.checkpoint_size   1073741824      default
storage.ballast_size      1048576         default
storage.staging_ttl_ms    86400000        default
storage.session_ttl_ms    86400000        default
storage.sessions_max      1000000         default
storage.ephemeral_size    0               default
storage.group             ""              default
fabric.directory          ""              default
fabric.brokers            1               default
fabric.goi_entries        65536           default
fabric.pbr_entries        4096            default
fabric.checkpoint_size    16777216        default
fabric.blog_size          33554432        default
topology.pin              true            flag --set
server.listen             127.0.0.1:1992  default
server.brokers            1               default
server.connections        10000           default
server.token_file         ""              default
server.tls_cert           ""              default
server.tls_key            ""              default
server.tls_client_ca      ""              default
server.memory_limit       0               default
server.peer_memory        0               default
server.connection_memory  67108864        default
server.read_rate          0               default
server.outbox_size        8388608         default
server.stall              60.0            default
server.drain              25.0            default
server.v1_past_end        catching_up     default
server.v1_idle            0.0             default
bench.directory           .               default
bench.seconds             0.25            flag --set
bench.rounds              5               default
"""


def show(*options: str) -> str:
    loaded = load(environ={"SEAWALL_DISK_BACKEND": "uring"}, flags={"topology.pin": "on", "bench.seconds": "250ms"})
    result = CliRunner().invoke(config, ["show", *options], obj=loaded)
    assert result.exit_code == 0
    return result.output


def test_text_is_aligned() -> None:
    assert show() == TEXT


def test_json_has_typed_values() -> None:
    shown = json.loads(show("--json"))
    assert list(shown) == list(SETTINGS)
    assert shown["topology.pin"] == {"value": True, "origin": "flag --set"}
    assert shown["bench.seconds"]["value"] == 0.25
    assert shown["disk.backend"]["value"] == "uring"


def test_every_key_is_described() -> None:
    text = show("--describe")
    rows = json.loads(show("--describe", "--json"))
    for key, setting in SETTINGS.items():
        assert f"    {setting.help}\n    {setting.rule.allowed}; default " in text
        assert setting.variable in text
        assert (
            rows[key]
            | {
                "help": setting.help,
                "allowed": setting.rule.allowed,
                "default": setting.default,
                "variable": setting.variable,
            }
            == rows[key]
        )


def test_descriptions_include_every_row() -> None:
    assert set(TEXT.splitlines()) <= set(show("--describe").splitlines())
