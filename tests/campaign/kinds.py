"""All kinds of cases, by name."""

from campaign.command_lines import COMMAND_LINES
from campaign.faults import FAULT_CASES
from campaign.kills import KILLS, MOMENTS
from campaign.other_files import OTHER_FILES
from campaign.own_files import OWN_FILES
from campaign.pictures import PICTURES
from campaign.recipes import RECIPES
from campaign.teams import TEAMS
from campaign.verdict import Kind

ALL = (RECIPES, COMMAND_LINES, OWN_FILES, OTHER_FILES, PICTURES, KILLS, MOMENTS, TEAMS, FAULT_CASES)
KINDS: dict[str, Kind] = {kind.name: kind for kind in ALL}
