"""Reading ratings: each format of GroupLens, zipped or not, and any table."""

import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from ivvi.errors import ColumnError, DataError, FileError
from ivvi.simulators.ratings import Ratings, ratings_from_table, read_ratings

USER = [1, 1, 2, 6040]
MOVIE = [1193, 3952, 1, 1193]
RATING = [5, 3, 4, 1]


def rows(separator, header=""):
    lines = (
        separator.join(map(str, [*row, 978300760])) for row in zip(USER, MOVIE, RATING, strict=True)
    )
    return header + "".join(line + "\n" for line in lines)


TEXTS = {
    "ratings.dat": rows("::"),
    "u.data": rows("\t"),
    "ratings.csv": rows(",", "userId,movieId,rating,timestamp\n"),
}
CONTAINERS = {"ratings.dat": "ml-1m", "u.data": "ml-100k", "ratings.csv": "ml-25m"}


def check(ratings, rating=RATING):
    assert ratings.user.tolist() == USER
    assert ratings.movie.tolist() == MOVIE
    assert ratings.rating.tolist() == rating
    assert ratings.user.dtype == ratings.movie.dtype == np.int64
    assert ratings.rating.dtype == np.float64
    assert ratings.synthetic is False
    assert len(ratings) == len(rating)


@pytest.mark.parametrize("name", TEXTS)
class TestGroupLensFiles:
    def folder(self, tmp_path, name):
        folder = tmp_path / CONTAINERS[name]
        folder.mkdir()
        (folder / name).write_text(TEXTS[name])
        (folder / "README").write_text("not ratings")
        return folder

    def test_ratings_come_from_a_file(self, tmp_path, name):
        ratings = read_ratings(self.folder(tmp_path, name) / name)
        check(ratings)
        assert ratings.label == f"MovieLens {CONTAINERS[name]} {name}"

    def test_ratings_come_from_a_folder(self, tmp_path, name):
        ratings = read_ratings(str(self.folder(tmp_path, name)))
        check(ratings)
        assert ratings.label == f"MovieLens {CONTAINERS[name]} {name}"

    def test_ratings_come_from_a_zip(self, tmp_path, name):
        path = tmp_path / "renamed.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{CONTAINERS[name]}/", "")
            archive.writestr(f"{CONTAINERS[name]}/README", "not ratings")
            archive.writestr(f"{CONTAINERS[name]}/{name}", TEXTS[name])
        ratings = read_ratings(path)
        check(ratings)
        assert ratings.label == f"MovieLens {CONTAINERS[name]} {name}"

    def test_windows_line_ends_are_read_and_the_last_may_be_missing(self, tmp_path, name):
        path = tmp_path / name
        path.write_bytes(TEXTS[name].rstrip("\n").replace("\n", "\r\n").encode())
        ratings = read_ratings(path)
        check(ratings)
        assert ratings.label == name

    def test_row_with_a_field_too_few_is_shown(self, tmp_path, name):
        path = tmp_path / name
        bad = TEXTS[name].splitlines()[-1].rpartition("978300760")[0].rstrip(":,\t")
        path.write_text(TEXTS[name] + bad + "\n")
        with pytest.raises(DataError, match="4 fields separated by") as caught:
            read_ratings(path)
        assert repr(bad) in str(caught.value)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("3952", "zwei", "row 2 has 'zwei' as its movie; expected a whole number"),
            ("3952", "1.5", "row 2 has 1.5 as its movie; expected a whole number"),
            ("3952", "", "row 2 has no movie; expected a whole number"),
            ("6040", "6o40", "row 4 has '6o40' as its user; expected a whole number"),
            ("3952", "99999999999999999999", "row 2 has 1e.20 as its movie"),
        ],
    )
    def test_bad_value_is_named_by_row(self, tmp_path, name, old, new, message):
        path = tmp_path / name
        path.write_text(TEXTS[name].replace(old, new))
        with pytest.raises(DataError, match=message) as caught:
            read_ratings(path)
        assert str(path) in str(caught.value)

    def test_an_empty_file_of_ratings_is_refused(self, tmp_path, name):
        path = tmp_path / name
        path.write_text("")
        with pytest.raises(DataError, match="is empty; expected rows of user, movie and rating"):
            read_ratings(path)


def test_half_stars_are_ratings(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("userId,movieId,rating,timestamp\n1,2,3.5,9\n1,3,4.0,9\n")
    assert read_ratings(path).rating.tolist() == [3.5, 4.0]


def test_infinite_rating_in_a_file_is_named_by_path(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("user,movie,rating\n1,2,3\n1,3,inf\n")
    with pytest.raises(DataError, match="row 2 has the rating inf; expected a finite") as caught:
        read_ratings(path)
    assert str(caught.value).startswith(str(path))


def test_single_colons_are_refused(tmp_path):
    path = tmp_path / "ratings.dat"
    path.write_text("1::2::3::4\n1:7:2:7:3:7:4\n")
    with pytest.raises(DataError, match="4 fields separated by '::'"):
        read_ratings(path)


def test_bad_value_far_down_is_named(tmp_path):
    n = 200_000  # more than one block of the CSV reader
    lines = [f"{user},1,3" for user in range(n)]
    lines[150_000] = "150000,1,good"
    path = tmp_path / "many.csv"
    path.write_text("user,movie,rating\n" + "\n".join(lines))
    with pytest.raises(DataError, match="row 150001 has 'good' as its rating"):
        read_ratings(path)


@pytest.mark.parametrize(
    "names",
    [
        ("user", "movie", "rating"),
        ("USER_ID", "Movie_Id", "Rating"),
        ("userId", "itemId", "RATING"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_ratings_come_from_any_table(tmp_path, names, suffix):
    columns = dict(zip(names, (USER, MOVIE, RATING), strict=True))
    table = pa.table({"note": ["a", "b", "c", "d"], **columns})
    path = tmp_path / f"mine.{suffix}"
    if suffix == "csv":
        pa.csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    ratings = read_ratings(path)
    check(ratings)
    assert ratings.label == f"mine.{suffix}"


def test_a_csv_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(rows(",", "user,movie,rating,time\n"), encoding="utf-8-sig")
    check(read_ratings(path))


def test_a_folder_may_hold_parquet(tmp_path):
    pq.write_table(
        pa.table({"user_id": USER, "movie_id": MOVIE, "rating": RATING}),
        tmp_path / "ratings.parquet",
    )
    check(read_ratings(tmp_path))


def test_message_names_the_file_in_the_folder_or_zip(tmp_path):
    text = TEXTS["ratings.dat"].replace("3952", "zwei")
    (tmp_path / "ratings.dat").write_text(text)
    with pytest.raises(DataError, match=r"/ratings\.dat row 2 has 'zwei'"):
        read_ratings(tmp_path)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("ml-1m/ratings.dat", text)
    with pytest.raises(DataError, match=r"a\.zip/ml-1m/ratings\.dat row 2 has 'zwei'"):
        read_ratings(tmp_path / "a.zip")


class TestFileErrors:
    def test_a_missing_file_of_ratings_is_refused(self, tmp_path):
        with pytest.raises(FileError, match=r"absent\.dat does not exist; give a ratings file"):
            read_ratings(tmp_path / "absent.dat")

    def test_a_folder_without_ratings_is_refused(self, tmp_path):
        with pytest.raises(FileError, match=r"holds none of ratings\.dat, ratings\.csv, u\.data"):
            read_ratings(tmp_path)

    def test_a_zip_that_is_none_is_refused(self, tmp_path):
        (tmp_path / "ml-1m.zip").write_text("<html>not found</html>")
        with pytest.raises(FileError, match=r"ml-1m\.zip is not a whole zip file"):
            read_ratings(tmp_path / "ml-1m.zip")

    def test_a_zip_without_ratings_is_refused(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("ml-1m/movies.dat", "1::Toy Story::Comedy")
        with pytest.raises(FileError, match=r"a\.zip holds none of ratings\.dat"):
            read_ratings(tmp_path / "a.zip")

    def test_a_zip_with_two_tables_is_refused(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("a/ratings.dat", TEXTS["ratings.dat"])
            archive.writestr("b/ratings.dat", TEXTS["ratings.dat"])
        with pytest.raises(FileError, match=r"a/ratings\.dat and b/ratings\.dat; expected one"):
            read_ratings(tmp_path / "a.zip")

    def test_a_damaged_zip_is_refused(self, tmp_path):
        path = tmp_path / "a.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("ml-1m/ratings.dat", TEXTS["ratings.dat"])
        path.write_bytes(path.read_bytes().replace(b"1193", b"1194", 1))
        with pytest.raises(FileError, match="not a whole zip file: Bad CRC-32"):
            read_ratings(path)

    def test_a_truncated_parquet_file_is_refused(self, tmp_path):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"user": USER, "movie": MOVIE, "rating": RATING}), path)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(FileError, match=r"a\.parquet cannot be read as ratings") as caught:
            read_ratings(path)
        assert "\n" not in str(caught.value)

    def test_a_binary_file_is_no_table_of_ratings(self, tmp_path):
        (tmp_path / "ratings.csv").write_bytes(bytes(range(256)))
        with pytest.raises(FileError, match="is not a table of text"):
            read_ratings(tmp_path / "ratings.csv")


class TestColumnErrors:
    def test_a_missing_column_suggests_the_nearest(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("user,movies,rating\n1,2,3\n")
        with pytest.raises(ColumnError, match=r"no column for the movie.*did you mean 'movies'\?"):
            read_ratings(path)

    def test_a_parquet_file_without_a_column_is_refused(self, tmp_path):
        pq.write_table(pa.table({"user": USER, "movie": MOVIE}), tmp_path / "a.parquet")
        with pytest.raises(ColumnError, match=r"no column for the rating.*only 'user', 'movie'"):
            read_ratings(tmp_path / "a.parquet")

    def test_a_csv_without_header_is_refused(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("1,2,3\n4,5,6\n")
        with pytest.raises(ColumnError, match=r"no column for the user.*only '1', '2', '3'"):
            read_ratings(path)

    def test_two_columns_for_one_are_refused(self):
        table = {"user": [1], "item": [1], "movieId": [1], "rating": [3]}
        with pytest.raises(ColumnError, match="2 columns for the movie, 'item' and 'movieId'"):
            ratings_from_table(table)

    def test_a_type_that_holds_no_numbers_is_refused(self):
        table = {"user": np.array(["2020-01-01"], "M8[D]"), "movie": [1], "rating": [3]}
        with pytest.raises(ColumnError, match=r"date32\[day\] in its user column"):
            ratings_from_table(table)


class TestTables:
    columns = {"user": USER, "movie": MOVIE, "rating": RATING}  # noqa: RUF012

    def test_ratings_come_from_a_dict_of_lists_or_arrays(self):
        check(ratings_from_table(self.columns))
        check(ratings_from_table({name: np.array(v) for name, v in self.columns.items()}))

    def test_ratings_come_from_a_dict_of_series(self):
        check(ratings_from_table({name: pd.Series(v) for name, v in self.columns.items()}))

    def test_ratings_come_from_pandas_with_small_types_and_categories(self):
        frame = pd.DataFrame(self.columns).astype({"user": "int16", "rating": "int8"})
        frame["movie"] = frame["movie"].astype("category")
        check(ratings_from_table(frame))

    def test_ratings_come_from_a_polars_frame(self):
        polars = pytest.importorskip("polars")
        check(ratings_from_table(polars.DataFrame(self.columns)))
        texts = polars.DataFrame(self.columns).cast(polars.String)
        check(ratings_from_table(texts))

    def test_ratings_come_from_an_arrow_table_or_reader(self):
        table = pa.table(self.columns)
        check(ratings_from_table(table))
        check(ratings_from_table(table.to_reader()))

    def test_whole_floats_are_ids(self):
        check(ratings_from_table({**self.columns, "user": np.array(USER, float)}))

    def test_large_ids_as_text_stay_exact(self):
        table = {"user": [str(2**62 + 1)], "movie": [1], "rating": [3]}
        assert ratings_from_table(table).user.tolist() == [2**62 + 1]

    def test_label_and_synthetic_are_kept(self):
        ratings = ratings_from_table(self.columns, "my ratings", synthetic=True)
        assert (ratings.label, ratings.synthetic) == ("my ratings", True)

    def test_a_table_without_ratings_is_refused(self):
        with pytest.raises(DataError, match="mine has no rows; expected at least one rating"):
            ratings_from_table({"user": [], "movie": [], "rating": []}, "mine")

    @pytest.mark.parametrize("bad", [np.inf, np.nan, -np.inf])
    def test_a_rating_that_is_not_finite_is_refused(self, bad):
        table = {**self.columns, "rating": np.array([5, 3, bad, 1])}
        with pytest.raises(DataError, match=rf"mine row 3 has the rating {bad}; expected a finite"):
            ratings_from_table(table, "mine")

    def test_a_missing_rating_is_refused(self):
        frame = pd.DataFrame({**self.columns, "rating": [5, 3, None, 1]})
        with pytest.raises(DataError, match="row 3 has no rating; expected a number"):
            ratings_from_table(frame)

    def test_columns_of_different_lengths_are_refused(self):
        with pytest.raises(DataError, match="not a table of equally long columns"):
            ratings_from_table({**self.columns, "rating": [1]})

    def test_what_is_no_table_of_ratings_is_refused(self):
        with pytest.raises(DataError, match="ratings table is a list; expected a data frame"):
            ratings_from_table([1, 2, 3])


def test_ratings_refuse_shapes_that_differ():
    with pytest.raises(DataError, match=r"shapes \(2,\), \(2,\) and \(3,\)"):
        Ratings(np.arange(2), np.arange(2), np.ones(3), "mine", synthetic=False)
