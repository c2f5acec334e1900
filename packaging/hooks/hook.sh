# The common part of all hooks. A hook sets `hook` and `job`, defines `job_lines`, which prints the lines of the file,
# and sources this file with `.`.
dir=${WHOLEGRAIN_HOOKS:-/run/wholegrain-hooks}
# Above this number of files the hook only removes old ones.
files_max=8192
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL

# Prints one line: the value is cut to 1,000 bytes, and control characters, including line ends, become spaces.
put() {
    [ -n "$2" ] || return 0
    printf '%s=' "$1"
    printf '%s' "$2" | tr '\001-\037\177' '[ *]' | cut -c 1-1000
}

# Converts 0,1 to gpu/0,gpu/1.
gpus() {
    printf '%s' "$1" | tr -cd 'A-Za-z0-9,_-' | sed -e 's/,,*/,/g' -e 's/^,//' -e 's/,$//' -e 's/[^,][^,]*/gpu\/&/g'
}

# Checks that only root and the user who runs this can change the current directory's path: each directory on it
# belongs to them and is closed to others or sticky; the last one is closed to others.
safe() {
    at=$(pwd -P) && [ "$(stat -c %d:%i .)" = "$(stat -c %d:%i "$at")" ] || return 1
    last=yes
    while :; do
        set -- $(stat -c '%u %a' "$at") || return 1
        [ "$1" = 0 ] || [ "$1" = "$me" ] || return 1
        # Above the last directory sticky is enough: others can create files there, but neither remove nor rename
        # root's.
        case $last$2 in no1???) ;; *) [ $((0$2 & 022)) = 0 ] || return 1 ;; esac
        [ "$at" != / ] || return 0
        last=no at=${at%/*} at=${at:-/}
    done
}

# Enters a directory, and creates it if needed. Refuses unsafe paths: with a link on the path, or a directory of
# another user, root could be made to write elsewhere.
enter() {
    case $1 in /*) ;; *) return 1 ;; esac
    if [ -d "$1" ]; then
        cd -P "$1" 2>/dev/null && [ "$(pwd -P)" = "$1" ] && safe
        return
    fi
    set -- "${1%/*}" "${1##*/}" "$1"
    enter "${1:-/}" || return 1
    # Another job's hook may have created it meanwhile.
    mkdir -m 0755 "./$2" 2>/dev/null || [ -d "./$2" ] || return 1
    cd -P "./$2" && [ "$(pwd -P)" = "$3" ] && safe
}

# Removes files that the agent cannot remove because the directory belongs to root: those of jobs that ended ten
# minutes ago, any that are a month old, and temporary files of killed hooks. Touches only files of hooks.
clean() {
    for name in slurm oar; do
        find . -maxdepth 1 -type f -name ".$name-*.??????" -mmin +10 -exec rm -f {} +
        find . -maxdepth 1 -type f -name "$name-*" -mmin +43200 -exec rm -f {} +
    done
    find . -maxdepth 1 -type f \( -name 'slurm-*' -o -name 'oar-*' \) -mmin +10 -exec grep -lsx ended=1 {} + | while read -r over; do
        rm -f "$over"
    done
}

# Writes a temporary file and renames it, so that no reader sees a partial file.
write() {
    umask 022
    me=$(id -u)
    dir=${dir%/}
    case $job in '' | *[!A-Za-z0-9._-]* | .*) exit 0 ;; esac
    if ! enter "$dir"; then
        logger -t wholegrain-hook "nothing written: $dir or a directory above it can be changed by others than root, or cannot be created"
        exit 0
    fi
    set -- ./*
    if [ $# -ge "$files_max" ]; then
        clean
        exit 0
    fi
    manager=${hook%%-*}
    file=./$manager-$job
    new=$(mktemp "./.$manager-$job.XXXXXX") || exit 0
    {
        case $hook in
        *-epilog*)
            # Keeps the lines of the prolog; the last of several lines with one key counts.
            [ -f "$file" ] && [ ! -L "$file" ] && head -c 8000 "$file"
            job_lines
            echo ended=1
            ;;
        *) job_lines ;;
        esac
    } >"$new" && chmod 0644 "$new" && mv -fT "$new" "$file" || rm -f "$new"
    case $hook in *-epilog*) clean ;; esac
}

# In the background, because a disk that hangs must not delay the job; the hook waits less than a second.
(write) </dev/null >/dev/null 2>&1 &
child=$!
for pause in 0.01 0.01 0.02 0.02 0.04 0.1 0.1 0.1 0.1 0.1 0.1; do
    kill -0 "$child" 2>/dev/null || exit 0
    sleep "$pause" 2>/dev/null || break
done
kill -9 "$child" 2>/dev/null
exit 0
