# Common part of all hooks. They source it with `.` after they have set `hook` and `job` and defined `job_lines`, which prints the lines of the file.
dir=${WHOLEGRAIN_HOOKS:-/run/wholegrain-hooks}
# More files than this are left by jobs that no agent has heard of.
files_max=8192
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL

# One line: values are cut to 1,000 bytes, and control characters, line ends among them, become spaces.
put() {
    [ -n "$2" ] || return 0
    printf '%s=' "$1"
    printf '%s' "$2" | tr '\001-\037\177' '[ *]' | cut -c 1-1000
}

# 0,1 becomes gpu/0,gpu/1.
gpus() {
    printf '%s' "$1" | tr -cd 'A-Za-z0-9,_-' | sed -e 's/,,*/,/g' -e 's/^,//' -e 's/,$//' -e 's/[^,][^,]*/gpu\/&/g'
}

# Whether nobody but root and the user who runs this can change what a path leads to: each directory on it is theirs, and closed to
# others or sticky; the last one is closed to others.
safe() {
    at=$(pwd -P) && [ "$(stat -c %d:%i .)" = "$(stat -c %d:%i "$at")" ] || return 1
    last=yes
    while :; do
        set -- $(stat -c '%u %a' "$at") || return 1
        [ "$1" = 0 ] || [ "$1" = "$me" ] || return 1
        # Above the last one sticky is enough: others can make files there, and neither remove nor rename what is root's.
        case $last$2 in no1???) ;; *) [ $((0$2 & 022)) = 0 ] || return 1 ;; esac
        [ "$at" != / ] || return 0
        last=no at=${at%/*} at=${at:-/}
    done
}

# Goes into a directory, and makes what is missing of it. What is not safe is left alone: a link anywhere on the path, or a directory
# of another user, could have root write wherever that user likes.
enter() {
    case $1 in /*) ;; *) return 1 ;; esac
    if [ -d "$1" ]; then
        cd -P "$1" 2>/dev/null && [ "$(pwd -P)" = "$1" ] && safe
        return
    fi
    set -- "${1%/*}" "${1##*/}" "$1"
    enter "${1:-/}" || return 1
    # Another job's hook may have made it since.
    mkdir -m 0755 "./$2" 2>/dev/null || [ -d "./$2" ] || return 1
    cd -P "./$2" && [ "$(pwd -P)" = "$3" ] && safe
}

# Files that no agent may remove, as the directory is root's: of jobs that ended ten minutes ago, of any that are a month old, and
# what a hook that was killed has left. Nothing but what hooks make.
clean() {
    for name in slurm oar; do
        find . -maxdepth 1 -type f -name ".$name-*.??????" -mmin +10 -exec rm -f {} +
        find . -maxdepth 1 -type f -name "$name-*" -mmin +43200 -exec rm -f {} +
    done
    find . -maxdepth 1 -type f \( -name 'slurm-*' -o -name 'oar-*' \) -mmin +10 -exec grep -lsx ended=1 {} + | while read -r over; do
        rm -f "$over"
    done
}

# The whole file is written beside its place and then put there, so that nobody ever reads half of one.
write() {
    umask 022
    me=$(id -u)
    dir=${dir%/}
    case $job in '' | *[!A-Za-z0-9._-]* | .*) exit 0 ;; esac
    if ! enter "$dir"; then
        logger -t wholegrain-hook "nothing written: $dir, or what it lies in, is not root's alone, or cannot be made"
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
            # What the prolog knew stays; of a key that is there twice the last one counts.
            [ -f "$file" ] && [ ! -L "$file" ] && head -c 8000 "$file"
            job_lines
            echo ended=1
            ;;
        *) job_lines ;;
        esac
    } >"$new" && chmod 0644 "$new" && mv -fT "$new" "$file" || rm -f "$new"
    case $hook in *-epilog*) clean ;; esac
}

# In the background, as a disk that hangs must not hold up the job; looked after for less than a second.
(write) </dev/null >/dev/null 2>&1 &
child=$!
for pause in 0.01 0.01 0.02 0.02 0.04 0.1 0.1 0.1 0.1 0.1 0.1; do
    kill -0 "$child" 2>/dev/null || exit 0
    sleep "$pause" 2>/dev/null || break
done
kill -9 "$child" 2>/dev/null
exit 0
