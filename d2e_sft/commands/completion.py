"""`d2e completion`."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print the script that makes SHELL complete verbs, options, files and names of recipes.

    \b
    Examples:
      eval "$(d2e completion bash)"                                    # now; or in ~/.bashrc
      eval "$(d2e completion zsh)"                                   # or in ~/.zshrc, after compinit
      d2e completion fish > ~/.config/fish/completions/d2e.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "d2e", "_D2E_COMPLETE")
    # Not its `source`, which would start the shell to ask for its version.
    click.echo(script.source_template % script.source_vars())
