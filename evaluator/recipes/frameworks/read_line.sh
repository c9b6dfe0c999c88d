# Sourced by bash before the user's script, which it then follows command by command. A launcher or a
# Python is not started: its words, the folder and the exported variables go to CCLSEARCH_LINES.
# Programs that only describe the machine run, so that variables get their values; others do not.
shopt -s extdebug
set -o functrace

cclsearch_record() {
    printf '%s\0' "$#" "$@" "$PWD"
    env -0
    printf '\0'
} >> "$CCLSEARCH_LINES"

# Fails for a command that must not run; the arguments are its words, expanded.
cclsearch_may_run() {
    local words=("$@") program
    while [[ ${1-} == [A-Za-z_]*=* || ${1-} == exec || ${1-} == time || ${1-} == nohup || ${1-} == env ]]; do
        shift
    done
    program=${1-}
    case ${program##*/} in
        set | shopt | trap) return 1 ;; # a script that stops at its first error would stop here
        torchrun | accelerate | deepspeed | vllm | python | python3 | python3.*)
            cclsearch_record "${words[@]}"
            return 1
            ;;
        awk | basename | cat | cut | date | dirname | env | expr | free | getconf | grep | head | hostname | id | \
            lscpu | nproc | nvidia-smi | printenv | readlink | realpath | rocm-smi | scontrol | sed | seq | sort | \
            tail | tr | uname | wc | which) return 0 ;;
    esac
    [[ $(type -t -- "$program") != file ]]
}

cclsearch_before() {
    local text
    [[ $1 == cclsearch_* || ${FUNCNAME[1]-} == cclsearch_* ]] && return 0
    # Without redirections at the end, which would overwrite the logs of earlier runs.
    text=$(sed -E 's/([[:space:]]*([0-9]|&)?>>?[[:space:]]*(&[0-9]|>?\([^)]*\)|[^[:space:]]+))+[[:space:]]*&?$//' <<< "$1")
    [[ $text =~ ^[A-Za-z_][A-Za-z0-9_]*\+?=\( ]] && return 0
    eval "cclsearch_may_run $text" 2> /dev/null
}
trap 'cclsearch_before "$BASH_COMMAND"' DEBUG
