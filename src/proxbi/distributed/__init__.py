"""Past one device: problems on a mesh, and the processes that share it."""

from proxbi.distributed._launch import Launch as Launch
from proxbi.distributed._launch import first_node as first_node
from proxbi.distributed._launch import initialize as initialize
from proxbi.distributed._launch import launch_of as launch_of
from proxbi.distributed._layout import ShardWarning as ShardWarning
from proxbi.distributed._layout import row_mesh as row_mesh
from proxbi.distributed._ranks import RankLostError as RankLostError
from proxbi.distributed._shard import shard as shard
