"""All kinds of cases, by name."""

from campaign.command_lines import COMMAND_LINES
from campaign.own_files import OWN_FILES
from campaign.recipes import RECIPES
from campaign.verdict import Kind

KINDS: dict[str, Kind] = {kind.name: kind for kind in (RECIPES, COMMAND_LINES, OWN_FILES)}
