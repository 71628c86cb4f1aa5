"""The user's own `code.render`: imported where records are read, and part of what the prepared data is."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from warpbeam.data.encoder import Render
from warpbeam.errors import UserError


@dataclass(frozen=True)
class RenderHook:
    """`package.module:name`, and where it is imported from.

    Args:
        root: the job file's folder.
        bundle: the folder of the command; a Ray worker on another machine has its content in its working folder.
    """

    target: str
    root: str
    bundle: str

    def load(self) -> Render:
        """The function itself.

        Raises:
            UserError: it does not import, or is not there.
        """
        module, _, name = self.target.partition(":")
        self._put_on_path()
        try:
            render = getattr(importlib.import_module(module), name)
        except Exception as error:  # the user's own module may raise anything while it is imported
            raise UserError(
                f"code.render: {self.target!r} cannot be imported",
                why=f"{type(error).__name__}: {error}",
                fix=f"it is looked for in {self.root}, in {self.bundle} and among the installed packages",
                reason="own_code_import",
            ) from error
        if not callable(render):
            raise UserError(f"code.render: {self.target!r} is not a function", reason="own_code")
        return render  # type: ignore[no-any-return]

    def digest(self) -> str:
        """Changes when the hook's file, or another Python file in its folder, does."""
        self.load()
        digest = hashlib.sha256(self.target.encode())
        spec = importlib.util.find_spec(self.target.partition(":")[0])
        if spec is not None and spec.origin:
            for file in sorted(Path(spec.origin).parent.glob("*.py")):
                digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
        return digest.hexdigest()

    def _put_on_path(self) -> None:
        root, bundle = Path(self.root), Path(self.bundle)
        if not root.is_dir() and root.is_relative_to(bundle):
            root, bundle = Path(os.getcwd()) / root.relative_to(bundle), Path(os.getcwd())
        for folder in (str(bundle), str(root)):
            if folder not in sys.path:
                sys.path.insert(0, folder)
