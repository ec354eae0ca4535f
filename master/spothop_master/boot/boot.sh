# Set above: VM, URL (of the master), D (our folder), ZIPS (tag=sha256 ...), PY3 (the master's Python),
# AWAY_S, CONFIG, DELETE (a program, or nothing). POSIX sh and python3; harmless to run again; only calls out.
set -u
umask 077
export PATH="${PATH:-/bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
mkdir -p "$D" || exit 1

say() {
  set -- "$(date -u +%Y-%m-%dT%H:%M:%SZ) boot: $*"
  echo "$1" >>"$D/boot.log"
  { echo "spothop $VM $1" >/dev/console; } 2>/dev/null || :
}

put() { # FILE: standard input, whole or not at all
  cat >"$1.$$" && mv "$1.$$" "$1" && return
  rm -f "$1.$$"
  say "$1 cannot be written: is the disk full, or read-only?"
  exit 1
}

word() { # VALUE: so that a shell reads it as one word, whatever is in it
  "$PY" -I -c 'import os, shlex, sys
sys.stdout.buffer.write(os.fsencode(shlex.quote(sys.argv[1])))' "$1"
}

again() { # WHY: wait, twice as long each time, or give the VM up
  waited=$((${waited:-0} + ${pause:=1}))
  if [ "$waited" -gt "$AWAY_S" ]; then
    say "$1; giving up after $waited s: shutting down"
    /bin/sh "$D/over.sh" 4
    exit 1
  fi
  say "$1; again in $pause s"
  sleep $((pause + $$ % (pause + 1)))
  pause=$((pause * 2))
  [ "$pause" -le 30 ] || pause=30
}

by_curl() { curl -fsS --connect-timeout 10 --max-time 900 ${CA:+--cacert "$CA"} -o "$2" "$1"; }
by_wget() { wget -q -T 30 ${CA:+--ca-certificate="$CA"} -O "$2" "$1"; }
by_python() {
  "$PY" -I -c 'import shutil, ssl, sys, urllib.request as r
tls = r.HTTPSHandler(context=ssl.create_default_context(cafile=sys.argv[3] or None))
with r.build_opener(tls).open(sys.argv[1], timeout=30) as a, open(sys.argv[2], "wb") as f:
    shutil.copyfileobj(a, f)' "$1" "$2" "$CA"
}

is_whole() { # FILE SHA256
  "$PY" -I -c 'import hashlib, sys
sys.exit(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() != sys.argv[2])' "$1" "$2"
}

fetch() ( # SHA256 FILE; the master is never behind a proxy
  unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
  for tool in curl wget "$PY"; do
    command -v "$tool" >/dev/null || continue
    by=$tool
    [ "$tool" != "$PY" ] || by=python
    if ! "by_$by" "$URL/agent/v1/zips/$1" "$2.$$" 2>>"$D/boot.log"; then
      say "$by: no answer of $URL"
    elif is_whole "$2.$$" "$1"; then
      mv "$2.$$" "$2" && exit 0
    else
      say "$by: what came has not the SHA-256 $1"
    fi
  done
  rm -f "$2.$$"
  exit 1
)

install() { # TAG SHA256: sets A and PY to what runs
  A=$D/agent-$2
  [ ! -e "$A/ready" ] || return 0
  while ! { [ -s "$A.zip" ] && is_whole "$A.zip" "$2"; } && ! fetch "$2" "$A.zip"; do
    again "no agent yet"
  done
  rm -rf "$A"
  "$PY" -I -c 'import sys, zipfile
zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' "$A.zip" "$A" || return 1
  echo "$PY" >"$A/python"
  if [ "$1" = any ]; then
    until "$PY" "$A/setup_portable.py" >>"$D/boot.log" 2>&1; do
      again "what the agent needs cannot be installed"
    done
  fi
  "$(cat "$A/python")" -I "$A" --help >/dev/null 2>>"$D/boot.log" || return 1
  touch "$A/ready"
  rm -f "$A.zip"
}

zip_for() { # TAG: its SHA-256, if the master has one
  for each in $ZIPS; do
    [ "${each%%=*}" != "$1" ] || echo "${each#*=}"
  done
}

say "VM $VM, master $URL"
now=$(cat /proc/sys/kernel/random/boot_id)
if read -r boot pid <"$D/boot.pid" && [ "$boot" = "$now" ] && kill -0 "$pid"; then
  say "another run of this script is at it (process $pid)"
  exit
fi 2>/dev/null
echo "$now $$" | put "$D/boot.pid"
put "$D/over.sh" <<'END'
# $1: the exit code of an agent that is not started again. Nobody may pay for this VM any longer:
# its master ends it, and if it does not, it ends itself.
case $1 in
0 | 3) after=540 ;;
4) after=0 ;;
*) exit ;;
esac
cd "${0%/*}" || exit
if [ -s delete.py ]; then # where a VM that is shut down goes on costing
  { sleep "$after" && exec "$(cat delete.python)" -I delete.py; } >>boot.log 2>&1 </dev/null &
elif [ "$after" = 0 ]; then
  shutdown -h now || poweroff
  exit
fi
shutdown -h +10 || { sleep 600; poweroff; }
END

PY=
for each in "$PY3" python3; do
  found=$(command -v "$each") || continue
  tag=$("$found" -I -c 'import sysconfig as s; print(s.get_config_var("SOABI"))')
  if [ -z "$PY" ] || [ -n "$(zip_for "$tag")" ]; then PY=$found TAG=$tag; fi
  [ -z "$(zip_for "$TAG")" ] || break
done
if [ -z "$PY" ]; then
  say "this image has no python3: give the job another image, or install it there"
  exit 1
fi
if [ -n "$DELETE" ]; then
  printf '%s\n' "$DELETE" | put "$D/delete.py"
  echo "$PY" | put "$D/delete.python"
fi
printf '%s\n' "$CONFIG" | put "$D/agent.json"
"$PY" -I -c 'import json, sys; print(json.load(sys.stdin)["ca"], end="")' <"$D/agent.json" |
  put "$D/ca.pem"
CA=
[ ! -s "$D/ca.pem" ] || CA=$D/ca.pem

sha=$(zip_for "$TAG")
if [ -z "$sha" ] || ! install "$TAG" "$sha"; then
  say "$TAG is not the master's Python: installing from the package index"
  install any "$(zip_for any)" || { say "the agent does not run here"; exit 1; }
fi
PY=$(cat "$A/python")
say "agent installed: $A, $PY"

if [ -z "${HOME:-}" ]; then # training libraries need one
  HOME=/root
  (: >/root/.$$ && rm /root/.$$) 2>/dev/null || { HOME=$D/home; mkdir -p "$HOME"; }
fi
NO_PROXY=169.254.169.254,metadata.google.internal${NO_PROXY:+,$NO_PROXY}
NO_PROXY=$(printf %s "$NO_PROXY" | tr -d '[:space:]') # not all that read it leave spaces out
put "$D/agent.sh" <<END
export NO_PROXY=$(word "$NO_PROXY") HOME=$(word "$HOME")
export no_proxy="\$NO_PROXY"
cd $D || exit 1
exec $(word "$PY") -I $A --config $D/agent.json
END
if [ -d /run/systemd/system ]; then
  put /etc/systemd/system/spothop-agent.service <<END
[Unit]
Description=spothop agent of $VM
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
WorkingDirectory=$D
ExecStart=/bin/sh $D/agent.sh
ExecStopPost=/bin/sh -c 'exec /bin/sh $D/over.sh "\$EXIT_STATUS"'
Restart=on-failure
RestartPreventExitStatus=3 4
RestartSec=1
KillMode=process
LimitNOFILE=65536
StandardOutput=journal+console
StandardError=inherit
[Install]
WantedBy=multi-user.target
END
  systemctl daemon-reload
  systemctl enable --now spothop-agent.service && say "started by systemd"
  exit
fi
put "$D/run.sh" <<END
trap 'kill \$agent; wait \$agent' TERM
while :; do
  /bin/sh $D/agent.sh >>$D/agent.log 2>&1 &
  agent=\$!
  wait \$agent
  code=\$?
  case \$code in 0 | 3 | 4) break ;; esac
  echo "the agent ended with \$code; it is started again" >>$D/agent.log
  sleep 1
done
exec /bin/sh $D/over.sh \$code
END
put "$D/start.sh" <<END
#!/bin/sh
umask 077
read -r pid 2>/dev/null <$D/run.pid && grep -qs $D/run.sh "/proc/\$pid/cmdline" && exit 3
nohup /bin/sh $D/run.sh >>$D/agent.log 2>&1 </dev/null &
echo \$! >$D/run.pid
END
cloud_init=/var/lib/cloud/scripts/per-boot # it runs this script at the VM's first start only
if [ -d "$cloud_init" ]; then
  put "$cloud_init/spothop-agent" <"$D/start.sh" && chmod 700 "$cloud_init/spothop-agent"
fi
/bin/sh "$D/start.sh"
case $? in
0) say "started, without systemd" ;;
3) say "it runs already" ;;
esac
