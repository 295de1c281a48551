"""`slotmq completion`: scripts that let a shell complete commands, options, and names of the running broker.

A script asks `slotmq completion words` at each Tab, so it never differs from the commands that are installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from broker.cli.parser import add_command, add_group

__all__ = ["SCRIPTS", "add_completion"]

# The lines of `completion words` are candidates, with a Tab and a description after some; `:files` and `:folders` ask
# the shell for its own. They are never evaluated: a queue may be called `$(reboot)`.
SCRIPTS: Final = {
    "bash": """\
# slotmq completion for bash: add to ~/.bashrc
#   source <(slotmq completion bash)
_slotmq() {
    local line current="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
            :folders) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
            *) printf -v line %q "${line%%$'\\t'*}"; COMPREPLY+=("$line") ;;
        esac
    done < <("${COMP_WORDS[0]}" completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" </dev/null 2>/dev/null)
}
complete -F _slotmq slotmq
""",
    "zsh": """\
#compdef slotmq
# slotmq completion for zsh: add to ~/.zshrc, after compinit
#   source <(slotmq completion zsh)
_slotmq() {
    local line
    local -a names shown
    while IFS= read -r line; do
        case $line in
            :files) _files ;;
            :folders) _files -/ ;;
            *) names+=("${line%%$'\\t'*}"); shown+=("${line//$'\\t'/  -- }") ;;
        esac
    done < <("${words[1]}" completion words -- "${(@)words[2,CURRENT]}" </dev/null 2>/dev/null)
    (( ${#names} )) && compadd -l -d shown -a names
}
compdef _slotmq slotmq
""",
    "fish": """\
# slotmq completion for fish: write to ~/.config/fish/completions/slotmq.fish
#   slotmq completion fish > ~/.config/fish/completions/slotmq.fish
function __slotmq_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l current (commandline -ct)
    for line in ($words[1] completion words -- $words[2..-1] </dev/null 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path $current
            case :folders
                __fish_complete_directories $current
            case '*'
                echo -- $line
        end
    end
end
complete -c slotmq -f -a '(__slotmq_complete)'
""",
}


def add_completion(commands: Any, all_commands: Callable[[], argparse.ArgumentParser]) -> None:
    """Add the commands. `all_commands` returns the parser of `slotmq`."""
    kinds = add_group(commands, "completion", "print a script that lets a shell complete slotmq commands and names")
    for shell, script in SCRIPTS.items():
        command = add_command(kinds, shell, f"print the script for {shell}; its first lines say where it goes")
        command.set_defaults(run=_print, script=script)
    command = add_command(kinds, "words", "print what may follow; the scripts call it")
    command.add_argument("words", metavar="WORD", nargs="*", help="the words after slotmq, the last one incomplete")
    command.set_defaults(run=_words, all_commands=all_commands)


def _print(arguments: argparse.Namespace) -> int:
    print(arguments.script, end="")
    return 0


def _words(arguments: argparse.Namespace) -> int:
    from broker.cli.completing import completions

    for line in completions(arguments.all_commands(), arguments.words or [""]):
        print(line)
    return 0
