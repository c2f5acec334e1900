"""Runs snmpsim: agents of version 1 and 2c on many addresses, each with the recorded data of a folder.

agents.py FOLDER PORT ADDRESS...: FOLDER/data/<community>.snmprec is what the agents answer for a community.
"""

import os
import pathlib
import sys

# The tests run as root where CI does; it listens on addresses of this machine only.
os.environ["SNMPSIM_ALLOW_ROOT"] = "true"

from snmpsim.commands.responder import main  # noqa: E402

folder, port = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / "index").mkdir(exist_ok=True)
arguments = [f"--data-dir={folder}/data", f"--cache-dir={folder}/index", "--logging-method=null"]
arguments += [f"--agent-udpv4-endpoint={address}:{port}" for address in sys.argv[3:]]
sys.argv[1:] = arguments
sys.exit(main())
