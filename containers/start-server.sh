#!/bin/sh
# All of a server in one container: SuperLink, gateway, and a run. Arguments go to `dapfl run`.
set -eu
cd /deployment
./start-superlink.sh &
until python -c 'import socket; socket.create_connection(("127.0.0.1", 8000), 1)' 2>/dev/null; do
    sleep 1
done
./start-gateway.sh &
exec ./run.sh "$@"
