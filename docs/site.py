"""Makes a site of these pages, the playground and the notebooks: python3 docs/site.py OUT. `make site` calls it."""

import html
import pathlib
import re
import shutil
import sys

import markdown

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = pathlib.Path(sys.argv[1])

STYLE = """
:root { --back: #fbfbfa; --card: #fff; --ink: #1d2329; --dim: #5b6670; --line: #d9dde1; --link: #0b62a4; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14181c; --card: #1b2026; --ink: #e4e8eb; --dim: #9aa6b0; --line: #343c44; --link: #63b3f0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif; }
.whole { display: grid; grid-template-columns: 15em minmax(0, 1fr); max-width: 1180px; margin: 0 auto; gap: 32px; padding: 24px 20px; }
nav ul { list-style: none; padding: 0; margin: 0; } nav li { margin: 3px 0; } a { color: var(--link); }
nav [aria-current] { color: var(--ink); font-weight: 600; text-decoration: none; }
pre, .scroll { overflow-x: auto; } pre { background: var(--card); border: 1px solid var(--line); padding: 12px; font-size: 14px; }
code { overflow-wrap: anywhere; } pre code { overflow-wrap: normal; }
table { border-collapse: collapse; background: var(--card); font-size: 14px; }
th, td { border: 1px solid var(--line); padding: 4px 10px; text-align: left; vertical-align: top; }
td, th { overflow-wrap: normal; } td code, th code { overflow-wrap: normal; }
img { max-width: 100%; }
@media (max-width: 800px) { .whole { grid-template-columns: minmax(0, 1fr); } nav { order: 2; border-top: 1px solid var(--line); padding-top: 16px; } }
"""


def title(text: str) -> str:
    return re.search(r"^# (.+)$", text, re.MULTILINE).group(1)


def target(link: str, page: pathlib.Path, names: dict[pathlib.Path, str]) -> str:
    """Where a link of the checkout leads on the site; what the site lacks is named, without a link."""
    file, _, place = link.partition("#")
    there = (page.parent / file).resolve()
    if there in names:
        return names[there] + ("#" + place if place else "")
    return ""


def convert(page: pathlib.Path, names: dict[pathlib.Path, str]) -> str:
    body = markdown.markdown(page.read_text(), extensions=["tables", "fenced_code", "toc"])

    def mend(found: re.Match) -> str:
        link, text = found.group(1), found.group(2)
        if "://" in link or link.startswith(("#", "mailto:")):
            return found.group(0)
        there = target(link, page, names)
        return f'<a href="{there}">{text}</a>' if there else text

    body = re.sub(r'<a href="([^"]*)">(.*?)</a>', mend, body, flags=re.DOTALL)
    body = re.sub(r'src="(?:docs/)?([^":]+\.png)"', r'src="\1"', body)
    return body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
    names = {page: "index.html" if page.name == "README.md" else page.stem.lower() + ".html" for page in pages}
    entries = [(names[page], title(page.read_text())) for page in pages]
    for built, text in [("playground.html", "The playground itself"), *(
        (f"notebooks/{notebook.stem}.html", f"Notebook: {notebook.stem.replace('-', ' ')}")
        for notebook in sorted((ROOT / "notebooks").glob("*.ipynb"))
    )]:
        made = ROOT / "target" / built
        if made.exists():
            place = OUT / ("simulator.html" if built == "playground.html" else pathlib.Path(built).name)
            shutil.copyfile(made, place)
            entries.append((place.name, text))
        else:
            print(f"left out, not built: {built}", file=sys.stderr)
    for picture in (ROOT / "docs").glob("*.png"):
        shutil.copyfile(picture, OUT / picture.name)
    for page in pages:
        links = "".join(
            f'<li><a href="{name}"{" aria-current=page" if name == names[page] else ""}>{html.escape(text)}</a></li>'
            for name, text in entries
        )
        text = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
            f'initial-scale=1"><meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
            f"<title>{html.escape(title(page.read_text()))}</title><style>{STYLE}</style></head><body><div class=whole>"
            f"<nav aria-label=pages><ul>{links}</ul></nav><main>{convert(page, names)}</main></div></body></html>"
        )
        (OUT / names[page]).write_text(text)
    print(f"{OUT / 'index.html'}: {len(pages)} pages")


main()
