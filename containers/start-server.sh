#!/bin/sh
# All of a server in one container: SuperLink, gateway, and a run. Arguments go to `dapfl run`. Without any, the run is in
# /results/run, and a container that is started again continues it.
set -eu
cd /deployment
./start-superlink.sh &
link=$!
until python -c 'import socket; socket.create_connection(("127.0.0.1", 8000), 1)' 2>/dev/null; do
    kill -0 "$link" # fails, and ends this script, if the SuperLink has ended
    sleep 1
done
./start-gateway.sh &
if [ $# -gt 0 ]; then
    exec ./run.sh "$@"
elif [ -e /results/run/manifest.json ]; then
    exec ./dapfl.sh run --resume /results/run
else
    exec ./run.sh --out /results/run
fi
