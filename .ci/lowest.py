"""Print the lowest version of each dependency in pyproject.toml as pip constraints: `lowest.py > constraints.txt`."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
lines = [*project["dependencies"], *(line for name, extra in extras.items() if name != "all" for line in extra)]
for line in lines:
    name, version = re.match(r"([\w-]+)(?:\[.*?\])?>=([\w.]+)", line).groups()
    print(f"{name}=={version}")
