"""Data that come in rows, and batches of them."""

from proxbi.rows._batches import Batch as Batch
from proxbi.rows._batches import Rows as Rows
from proxbi.rows._batches import mean_over_blocks as mean_over_blocks
from proxbi.rows._sampling import Sampling as Sampling
from proxbi.rows._sampling import seed_of as seed_of
from proxbi.rows._sources import ArrayRows as ArrayRows
from proxbi.rows._sources import IterableRows as IterableRows
from proxbi.rows._sources import MapRows as MapRows
from proxbi.rows._sources import MemmapRows as MemmapRows
from proxbi.rows._sources import RowError as RowError
from proxbi.rows._sources import RowSource as RowSource
