# Sourced by bash before the user's script, which it then follows command by command. A launcher or a
# Python is not started: its words, the folder and the exported variables go to CCLSEARCH_LINES.
# Programs that only describe the machine run, so that variables get their values; others do not,
# and nothing is written. A trap is not traced itself, so what it expands must start no command.
shopt -s extdebug
set -o functrace
set -o noclobber # groups and loops with a redirection must not empty the log of an earlier run
[[ ${CCLSEARCH_BASH-} ]] || CCLSEARCH_BASH=$BASH CCLSEARCH_ENV=$(type -P env)
export CCLSEARCH_BASH CCLSEARCH_ENV CCLSEARCH_TRACER=${BASH_SOURCE[0]}

echo() { [[ -f /dev/stdout ]] || builtin echo "$@"; }
printf() { [[ $1 == -v || ! -f /dev/stdout ]] && builtin printf "$@"; }

cclsearch_record() {
    builtin printf '%s\0' "$#" "$@" "$PWD"
    "$CCLSEARCH_ENV" -0
    builtin printf '\0'
} >> "$CCLSEARCH_LINES"

# Whether a command may run; the arguments are its words, expanded.
cclsearch_may_run() {
    local words=("$@") variables=() program kind
    while [[ ${1-} == [A-Za-z_]*=* || ${1-} =~ ^(exec|time|nohup|env|command|builtin)$ ]]; do
        [[ $1 == *=* ]] && variables+=("$1")
        shift
    done
    program=${1-}
    kind=$(type -t -- "$program")
    case ${program##*/} in
        '') return 1 ;;
        set) [[ ${2-} == -- || ${2-} == [-+]a ]] ;; # one that stops at errors would stop here
        shopt | trap | kill) return 1 ;;
        torchrun | accelerate | deepspeed | vllm | sglang | python | python3 | python3.* | srun | mpirun)
            cclsearch_record "${words[@]}"
            return 1
            ;;
        awk | basename | cat | cut | date | dirname | expr | free | getconf | grep | head | hostname | id | \
            lscpu | nproc | printenv | readlink | realpath | scontrol | seq | \
            tail | tr | uname | wc | which) ((!cclsearch_writes)) ;;
        sed) ((!cclsearch_writes)) && [[ ! " $*" =~ \ (-[A-Za-z]*i|--in-place) ]] ;;
        sort) ((!cclsearch_writes)) && [[ ! " $*" =~ \ (-[A-Za-z]*o|--output) ]] ;;
        nvidia-smi) ((!cclsearch_writes)) && [[ $* == nvidia-smi || $* =~ \ (-L|--list-gpus|-q|--query) ]] ;;
        *)
            if [[ $kind == file ]]; then
                cclsearch_follow "$@" > /dev/null
                return 1
            fi
            ((!cclsearch_writes)) || [[ $kind == function && $program != echo && $program != printf ]]
            ;;
    esac
}

# Follows another shell script, as a process of its own, if the words start one.
cclsearch_follow() {
    local first=''
    if [[ ${1##*/} == @(bash|sh) ]]; then
        shift
        while [[ ${1-} == -[euvx]* ]]; do shift; done
    elif [[ -r $1 ]]; then
        { read -r first < "$1"; } 2> /dev/null
        [[ $first == '#!'*sh ]] || return
    fi
    [[ ! -f ${1-} ]] || "$CCLSEARCH_ENV" "${variables[@]}" "$CCLSEARCH_BASH" -c \
        'source "$CCLSEARCH_TRACER"; source "$0"' "$@"
}

# Splits a command into its words, which are not expanded, in cclsearch_words.
cclsearch_split() {
    local rest=$1 word='' open='' top
    local quoted=$'^\\$?\'[^\']*\'' plain=$'^[^][:space:]\\\\\'"`$(){}<>[]+'
    cclsearch_words=()
    while [[ $rest ]]; do
        top=${open: -1}
        if [[ ! $top && $rest =~ ^[[:space:]]+ ]]; then
            [[ ! $word ]] || cclsearch_words+=("$word")
            [[ ${BASH_REMATCH[0]} != *$'\n'* ]] || return 0 # a here-document
            word=''
            rest=${rest#"${BASH_REMATCH[0]}"}
            continue
        elif [[ $rest =~ ^\\. ]] || [[ $top != '"' && $rest =~ $quoted ]] || [[ $rest =~ $plain ]]; then
            :
        elif [[ $top && ${rest:0:1} == "$top" ]]; then
            [[ $rest =~ ^. ]]
            open=${open%?}
        elif [[ $rest =~ ^\$\{ ]]; then
            open+='}'
        elif [[ $rest =~ ^\$\( ]] || [[ $top != '"' && $rest =~ ^[\<\>]?\( ]]; then
            open+=')'
        elif [[ $rest =~ ^[\"\`] ]]; then
            open+=${BASH_REMATCH[0]}
        else
            [[ $rest =~ ^. ]]
        fi
        word+=${BASH_REMATCH[0]}
        rest=${rest:${#BASH_REMATCH[0]}}
    done
    [[ ! $word ]] || cclsearch_words+=("$word")
}

# Takes redirections out of cclsearch_words; cclsearch_writes is whether one goes to a file.
cclsearch_without_redirections() {
    local kept=() word operator='' target
    local redirection='^([0-9]+|&|\{[A-Za-z_]+\})?(>>|>\||>&|<&|<<<|<<-?|<>|>|<)(.*)$'
    cclsearch_writes=0
    for word in "${cclsearch_words[@]}"; do
        if [[ $operator ]]; then
            target=$word
        elif [[ $word != [\<\>]'('* && $word =~ $redirection ]]; then
            operator=${BASH_REMATCH[2]} target=${BASH_REMATCH[3]}
            [[ $target ]] || continue
        else
            kept+=("$word")
            continue
        fi
        [[ $operator != *'>'* || $target == /dev/null || $target =~ ^[0-9-]+$ ]] || cclsearch_writes=1
        operator=''
    done
    cclsearch_words=("${kept[@]}")
}

# Puts into cclsearch_then what tells whether the command may run, for the trap to evaluate: only
# there do $@ and BASH_SOURCE mean what they mean to the command.
cclsearch_decide() {
    local first=0
    cclsearch_then=true
    case $1 in cclsearch_* | '[['* | '(('* | 'for '* | 'case '* | 'select '*) return ;; esac
    [[ ${FUNCNAME[1]-} != cclsearch_* && ${FUNCNAME[1]-} != @(echo|printf) ]] || return
    cclsearch_split "$1"
    cclsearch_without_redirections
    ((${#cclsearch_words[@]})) || cclsearch_then=false
    while [[ ${cclsearch_words[first]-} =~ ^[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?= ]]; do
        first=$((first + 1))
    done
    [[ ${cclsearch_words[first]-} ]] || return # only assignments, whose commands are traced
    cclsearch_text="cclsearch_may_run ${cclsearch_words[*]}"
    if [[ $(type -t -- "${cclsearch_words[first]}") == function ]] && ((cclsearch_writes)); then
        cclsearch_text="${cclsearch_words[*]} > /dev/null"
        cclsearch_then='cclsearch_apart "$0" "$@"; false'
    elif [[ $cclsearch_text =~ \$\([^\(]|\`|[\<\>]\( ]]; then
        cclsearch_then='cclsearch_apart "$0" "$@"'
    else
        cclsearch_then=$cclsearch_text
    fi
}

# Evaluates cclsearch_text in a shell with the same variables and functions, where all is traced.
cclsearch_apart() {
    local state=$CCLSEARCH_LINES.$RANDOM asked=$cclsearch_text
    { declare -p; declare -f; } >| "$state"
    "$CCLSEARCH_BASH" -c 'source "$1" 2> /dev/null; shift; source "$CCLSEARCH_TRACER"; eval "$asked"' \
        "$1" "$state" "${@:2}"
}

trap 'cclsearch_decide "$BASH_COMMAND"; eval "$cclsearch_then"' DEBUG
