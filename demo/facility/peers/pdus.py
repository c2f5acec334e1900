"""Power distribution units, one for each rack: agents of snmpsim with PowerNet-MIB (APC) and users of SNMP version 3.

pdus.py SETTINGS: the settings are JSON in a file of mode 0600, because they hold the password. Each unit has an address of its own, as units in racks do.
"""

import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

# A demonstration in a container runs as root. The peer listens on addresses of this machine only.
os.environ["SNMPSIM_ALLOW_ROOT"] = "true"

from snmpsim.commands.responder import main  # noqa: E402

import plant  # noqa: E402

UNIT = "1.3.6.1.4.1.318.1.1.26.4.3.1"
PHASE = "1.3.6.1.4.1.318.1.1.26.6.3.1"


def records(seed: int, rack: int) -> str:
    """The records of a unit. The variation module `rack` computes values from the model when they are asked for."""

    def variable(oid: str, tag: int, what: str) -> str:
        return f"{oid}|{tag}:rack|{seed},{rack},{what}"

    lines = [
        f"1.3.6.1.2.1.1.1.0|4|Simulated power distribution unit of rack {rack + 1}",
        variable("1.3.6.1.2.1.1.3.0", 67, "uptime"),
        f"1.3.6.1.2.1.1.5.0|4|pdu{rack + 1}",
        f"{UNIT}.3.1|4|pdu{rack + 1}",
        variable(f"{UNIT}.5.1", 2, "power"),
    ]
    for column, what in ((5, "current"), (6, "voltage"), (7, "power")):
        lines += [variable(f"{PHASE}.{column}.{phase}", 2, f"{what}{phase}") for phase in (1, 2, 3)]
    return "\n".join(lines) + "\n"


def arguments(settings: dict, folder: pathlib.Path) -> list[str]:
    result = [f"--variation-modules-dir={HERE.parent}/variation", f"--cache-dir={folder}/index", "--logging-method=stderr", "--log-level=error"]
    for rack in range(plant.RACKS):
        data = folder / f"rack{rack + 1}"
        data.mkdir(exist_ok=True)
        # The name `self` stands for the context without a name.
        (data / "self.snmprec").write_text(records(settings["seed"], rack))
        result += [
            "--v3-engine-id=auto",
            f"--v3-user={settings['snmp_user']}",
            f"--v3-auth-key={settings['snmp_password']}",
            "--v3-auth-proto=SHA256",
            f"--data-dir={data}",
            f"--agent-udpv4-endpoint=127.0.9.{rack + 1}:{settings['snmp_port']}",
        ]
    return result


path = pathlib.Path(sys.argv[1])
folder = path.parent / "pdus"
(folder / "index").mkdir(parents=True, exist_ok=True)
sys.argv[1:] = arguments(json.loads(path.read_text()), folder)
sys.exit(main())
