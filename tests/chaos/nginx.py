"""nginx as a plain balancer: each request goes to the next replica, whatever session it belongs to. Nothing is held
back, nothing times out, and a POST that a replica may have seen goes to no other one. `X-Replica` says who had it,
`X-Connected` whether anybody took the connection at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.support.ports import free_port
from tests.support.processes import Program, Programs, accepts

CONF = """
worker_processes 1;
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/nginx.error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream replicas {{
    {servers}
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_next_upstream error;
      proxy_read_timeout 1h;
      proxy_send_timeout 1h;
      add_header X-Replica $upstream_addr always;
      add_header X-Connected $upstream_connect_time always;
    }}
  }}
}}
"""


def executable() -> str | None:
    """Where nginx is; Debian keeps it where only root looks."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def balancer(programs: Programs, folder: Path, replicas: Sequence[str]) -> tuple[Program, int]:
    """Starts it in front of these addresses; its port."""
    command = executable()
    assert command is not None
    port = free_port()
    servers = "\n    ".join(f"server {address} max_fails=0;" for address in replicas)
    conf = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    conf.write_text(CONF.format(folder=folder, servers=servers, port=port, user=user))
    program = programs.start("nginx", [command, "-c", conf, "-p", folder], ready=accepts(port))
    return program, port
