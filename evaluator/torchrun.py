"""How torchrun starts ranks on this machine."""

from collections.abc import Sequence


def torchrun_command(world_size: int, program: Sequence[str]) -> tuple[str, ...]:
    """Give the command that starts so many ranks of a program, which begins with its Python."""
    return (
        *(program[0], "-P", "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={world_size}", "--no-python", *program),
    )
