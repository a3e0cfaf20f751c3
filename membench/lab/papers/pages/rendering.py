"""Templates of the pages: HTML with escaping, Markdown with the filter `plain` for what a paper's files hold."""

from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape


def render(template: str, **values: object) -> str:
    """Return a file of ``templates/``, filled in.

    Raises:
        jinja2.UndefinedError: the template needs a value that is not given.
    """
    return _environment().get_template(template).render(**values)


def plain(text: object) -> str:
    """Return a text that stays in its line of Markdown and starts no HTML there."""
    return " ".join(str(text).splitlines()).replace("<", "&lt;")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("membench.lab.papers"), PackageLoader("membench.pictures")]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["plain"] = plain
    return environment
