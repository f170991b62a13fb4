"""Under which name a user imports a definition: re-exports followed from public modules to where things are defined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gr_jax.corpus.python_source import Definition, Module


class Library:
    """Modules that may import from each other.

    Args:
      modules: by dotted name.
    """

    def __init__(self, modules: Mapping[str, Module]):
        self._modules = modules
        self._added: dict[tuple[str, str], Definition] = {}
        for module in modules.values():
            self._added.update(module.added)
        self._names: dict[tuple[str, str], str] = {}
        for place, name in self._added:
            if is_public(place) and not name.startswith("_") and "." not in name:
                self._offer(place, name, f"{place}.{name}")
        for module in modules.values():
            if is_public(module.name):
                self._name_definitions(module)
                self._name_reexports(module)

    def public_definitions(self) -> Iterator[tuple[str, Definition]]:
        """(public dotted name, definition) of everything documented that has a public name."""
        for module in self._modules.values():
            for definition in module.definitions.values():
                public = self._public_name(module.name, definition.name)
                if public is not None:
                    yield public, definition
        for (place, name), definition in self._added.items():
            public = self._public_name(place, name)
            if public is not None:
                yield public, definition

    def _public_name(self, module: str, name: str) -> str | None:
        owner, dot, member = name.partition(".")
        public = self._names.get((module, owner))
        return f"{public}.{member}" if public is not None and dot else public

    def _name_definitions(self, module: Module) -> None:
        """Names in a public module are public unless they begin with "_" or `__all__` leaves them out."""
        self._offer(module.name, "", module.name)
        for name in module.bound:
            if not name.startswith("_") and (module.exported is None or name in module.exported):
                self._offer(module.name, name, f"{module.name}.{name}")

    def _name_reexports(self, module: Module) -> None:
        names = set(module.reexported) if module.exported is None else set(module.exported)
        if module.exported is None:
            for star in module.stars:
                names |= self._star_names(star)
        for name in names:
            if name.startswith("_"):
                continue
            found = self._resolve(module.name, name, set())
            if found is None or not _may_reexport(module.name, found[0]):
                continue
            self._offer(*found, f"{module.name}.{name}")
            if found[1] == "" and not is_public(found[0]):
                # A private module under a public name: what it defines is public below that name.
                for inner in self._modules[found[0]].bound:
                    if not inner.startswith("_"):
                        self._offer(found[0], inner, f"{module.name}.{name}.{inner}")

    def _star_names(self, name: str) -> set[str]:
        module = self._modules.get(name)
        if module is None:
            return set()
        if module.exported is not None:
            return module.exported
        return {bound for bound in module.bound | module.reexported if not bound.startswith("_")}

    def _resolve(self, module_name: str, name: str, seen: set[tuple[str, str]]) -> tuple[str, str] | None:
        """(module, name) of the definition behind a name; ("module", "") where it is a module."""
        if (module_name, name) in seen:
            return None
        seen.add((module_name, name))
        module = self._modules.get(module_name)
        if module is None or name in module.definitions:
            return (module_name, name) if module is not None or (module_name, name) in self._added else None
        if name in module.imported:
            source, original = module.imported[name]
            if source.startswith("="):
                return self._resolve_attribute(module, source[1:], original, seen)
            if not original:
                return (source, "") if source in self._modules else None
            found = self._resolve(source, original, seen)
            if found is None and f"{source}.{original}" in self._modules:
                found = (f"{source}.{original}", "")
            return found
        for star in module.stars:
            found = self._resolve(star, name, seen)
            if found is not None:
                return found
        return (module_name, name) if (module_name, name) in self._added else None

    def _resolve_attribute(
        self, module: Module, owner: str, name: str, seen: set[tuple[str, str]]
    ) -> tuple[str, str] | None:
        """What `owner.name` is in `module`, where `owner` is a module or nothing."""
        if not owner:
            return self._resolve(module.name, name, seen)
        if owner in self._modules:
            return self._resolve(owner, name, seen)
        found = self._resolve(module.name, owner, seen) if "." not in owner else None
        return self._resolve(found[0], name, seen) if found is not None and found[1] == "" else None

    def _offer(self, module: str, name: str, public: str) -> None:
        """The shortest of several public names is the one that people write."""
        current = self._names.get((module, name))
        if current is None or _rank(public) < _rank(current):
            self._names[module, name] = public


def is_public(dotted: str) -> bool:
    """Whether no part of a dotted name begins with "_"."""
    return not any(part.startswith("_") for part in dotted.split("."))


def _may_reexport(public_module: str, module: str) -> bool:
    """What another package defines is not this one's, except the standard library's private modules."""
    package, owner = public_module.partition(".")[0], module.partition(".")[0]
    return package == owner or owner.startswith("_")


def _rank(public: str) -> tuple[int, int, str]:
    return public.count("."), len(public), public
