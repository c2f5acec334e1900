"""The management system of the building and its weather station: JSON over HTTP, with a bearer token.

building.py SETTINGS: the settings are JSON in a file of mode 0600, because they hold the token. It listens on 127.0.0.1 only.
"""

import hmac
import http.server
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import plant  # noqa: E402

# A client that does not send its request within this time is disconnected, s.
TIMEOUT_S = 10


def electrical(state: plant.PlantState) -> dict:
    return {
        "meters": [
            {"id": "lighting", "power_kw": state.lighting_w / 1000},
            {"id": "room-cooling", "power_kw": state.room_cooling_w / 1000},
            {"id": "ups-loss", "power_kw": state.ups_loss_w / 1000},
        ]
    }


def weather(state: plant.PlantState) -> dict:
    return {"station": "roof", "observation": {"temperature_c": state.outdoor_cel, "humidity_percent": state.humidity * 100}}


ROUTES = {"/api/v1/electrical": electrical, "/api/v1/weather": weather}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_S
    # Head and body leave in one segment: a client would wait for its own delayed acknowledgement otherwise.
    wbufsize = 1 << 16
    model: plant.Plant
    token: str

    def do_GET(self):
        expected = f"Bearer {self.token}".encode()
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), expected):
            self.answer(401, {"error": "a bearer token is required"})
        elif route := ROUTES.get(self.path):
            self.answer(200, route(self.model.at(time.time())))
        else:
            self.answer(404, {"error": f"there are {', '.join(ROUTES)}"})

    def answer(self, status: int, content: dict):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """A request is no event for the log."""


settings = json.loads(pathlib.Path(sys.argv[1]).read_text())
Handler.model, Handler.token = plant.Plant(settings["seed"]), settings["rest_token"]
server = http.server.ThreadingHTTPServer(("127.0.0.1", settings["rest_port"]), Handler)
print("ready", flush=True)
server.serve_forever()
