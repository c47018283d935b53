"""Print the lowest version of each dependency in pyproject.toml as pip constraints: `lowest.py > constraints.txt`."""

import re
import tomllib
from pathlib import Path

# Tools that only run or check the tests.
TOOLS = ("test", "docs")

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
lines = [*project["dependencies"], *(line for name, extra in extras.items() if name not in TOOLS for line in extra)]
for line in lines:
    name, version = re.match(r"([\w-]+)(?:\[.*?\])?>=([\w.]+)", line).groups()
    print(f"{name}=={version}")
