#!/usr/bin/env bash
# make_root.sh SUITE DIR: a directory with the RabbitMQ of a Debian suite, to run with chroot.
# bullseye: 3.8, bookworm: 3.10, trixie: 4.0, sid: 4.3 or newer.
# Nothing is installed on the machine: apt resolves and downloads the packages with lists of its own, and they are only unpacked,
# without their scripts. A complete DIR is left alone. The mirror is the one that apt of this machine uses.
set -euo pipefail
suite=$1 dir=$(realpath -m "$2") done_mark=$(realpath -m "$2")/.complete
[ -e "$done_mark" ] && { cat "$done_mark"; exit 0; }
mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/*.sources 2>/dev/null | head -1)
[ -n "$mirror" ] || mirror=$(sed -n 's/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' /etc/apt/sources.list | head -1)
rm -rf "$dir"
apt=$dir/.apt
mkdir -p "$apt"/{state/lists/partial,cache/archives/partial,etc/preferences.d,log}
: > "$apt/state/status"
keys=$(ls /usr/share/keyrings/debian-archive-keyring.* | head -1)
echo "deb [signed-by=$keys] $mirror $suite main" > "$apt/etc/sources.list"
run=(apt-get -qq -o Dir::State="$apt/state" -o Dir::State::status="$apt/state/status" -o Dir::Cache="$apt/cache"
     -o Dir::Etc::sourcelist="$apt/etc/sources.list" -o Dir::Etc::sourceparts=- -o Dir::Etc::preferencesparts="$apt/etc/preferences.d"
     -o Dir::Log="$apt/log" -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o APT::Install-Recommends=0
     -o Acquire::Languages=none -o Acquire::Check-Valid-Until=0)
"${run[@]}" update
"${run[@]}" install -y --download-only rabbitmq-server bash dash coreutils sed grep gawk findutils hostname procps util-linux tar libc-bin > /dev/null
mkdir -p "$dir"/usr/{bin,sbin,lib,lib64}
for name in bin sbin lib lib64; do ln -s "usr/$name" "$dir/$name"; done
for deb in "$apt"/cache/archives/*.deb; do
    case ${deb##*/} in locales*|python3*|libpython3*|perl*|libperl*|dpkg_*|logrotate*|systemd*|libsystemd-shared*|passwd*|adduser*|init-system*) continue;; esac
    dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink --no-same-owner -C "$dir" --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale
done
rm -rf "$apt"
mkdir -p "$dir"/{proc,dev,tmp,etc,root,broker,var/lib/rabbitmq}
[ -e "$dir/usr/bin/sh" ] || ln -s dash "$dir/usr/bin/sh"
[ -e "$dir/usr/bin/awk" ] || ln -s gawk "$dir/usr/bin/awk"
echo root:x:0:0:root:/root:/bin/sh > "$dir/etc/passwd"
echo root:x:0: > "$dir/etc/group"
echo '127.0.0.1 localhost' > "$dir/etc/hosts"
echo 'hosts: files' > "$dir/etc/nsswitch.conf"
chroot "$dir" /sbin/ldconfig 2>/dev/null || true
sbin=$(cd "$dir" && ls -d usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin)
version=${sbin#*server-}
echo "RabbitMQ ${version%/sbin}, $suite" > "$done_mark"
cat "$done_mark"
