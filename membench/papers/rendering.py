"""Templates of the pages: HTML with escaping, Markdown as it is."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


def render(template: str, **values: object) -> str:
    """Return a file of ``templates/``, filled in.

    Raises:
        jinja2.UndefinedError: the template needs a value that is not given.
    """
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("membench.papers"), autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
