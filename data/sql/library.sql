-- A town library: who wrote which book, and which member borrowed it for how many days.

CREATE TABLE author (
    author_id INTEGER PRIMARY KEY,
    name TEXT,
    country TEXT,
    birth_year INTEGER
);
INSERT INTO author VALUES
    (1, 'Ada Brandt', 'Germany', 1951),
    (2, 'Luis Ferrer', 'Spain', 1968),
    (3, 'Mina Okafor', 'Nigeria', 1975),
    (4, 'Hugo Lind', 'Sweden', 1944),
    (5, 'Clara Moreau', 'France', 1960),
    (6, 'Tomas Weber', 'Germany', 1983),
    (7, 'Yuki Tanabe', 'Japan', 1957),
    (8, 'Ines Costa', 'Portugal', 1971),
    (9, 'Peter Quill', 'Ireland', 1939),
    (10, 'Sofia Rossi', 'Italy', 1990),
    (11, 'Karin Holm', 'Sweden', 1965),
    (12, 'Amara Diallo', 'Nigeria', 1988);

CREATE TABLE book (
    book_id INTEGER PRIMARY KEY,
    title TEXT,
    author_id INTEGER REFERENCES author (author_id),
    genre TEXT,
    year INTEGER,
    pages INTEGER
);
INSERT INTO book VALUES
    (1, 'The Salt Road', 1, 'novel', 1989, 312),
    (2, 'Winter Ferry', 4, 'crime', 1978, 254),
    (3, 'A House of Bees', 3, 'novel', 2009, 401),
    (4, 'Paper Harbour', 5, 'novel', 1995, 288),
    (5, 'The Ninth Lock', 4, 'crime', 1984, 330),
    (6, 'Small Stars', 7, 'poetry', 1999, 96),
    (7, 'Rivers of Lagos', 3, 'history', 2015, 520),
    (8, 'Night Tram', 6, 'crime', 2012, 275),
    (9, 'The Orchard Keeper', 2, 'novel', 2001, 365),
    (10, 'Maps for Sailors', 8, 'history', 2006, 448),
    (11, 'Snow Alphabet', 7, 'poetry', 1986, 120),
    (12, 'Under the Clock', 6, 'crime', 2018, 298),
    (13, 'The Quiet Baker', 5, 'novel', 2011, 233),
    (14, 'Letters to Dublin', 9, 'history', 1972, 610),
    (15, 'Glass Garden', 2, 'poetry', 1994, 88),
    (16, 'The Last Ferry', 4, 'crime', 1991, 301),
    (17, 'Kitchen of Winds', 8, 'novel', 2013, 340),
    (18, 'First Light', 12, 'novel', 2020, 276),
    (19, 'The Copper King', 1, 'history', 2003, 575),
    (20, 'Harbour Songs', 11, 'poetry', 2010, 104),
    (21, 'Cold Evidence', 11, 'crime', 2016, 322),
    (22, 'Seven Doors', 12, 'novel', 2022, 389);

CREATE TABLE member (
    member_id INTEGER PRIMARY KEY,
    name TEXT,
    city TEXT,
    joined_year INTEGER
);
INSERT INTO member VALUES
    (1, 'Emil Aas', 'Bergen', 2012),
    (2, 'Rosa Klein', 'Oslo', 2015),
    (3, 'Jan Novak', 'Oslo', 2009),
    (4, 'Lena Berg', 'Bergen', 2018),
    (5, 'Omar Said', 'Stavanger', 2020),
    (6, 'Greta Falk', 'Oslo', 2011),
    (7, 'Paul Moen', 'Trondheim', 2016),
    (8, 'Ida Lund', 'Bergen', 2014),
    (9, 'Nils Dahl', 'Trondheim', 2021),
    (10, 'Maria Sole', 'Oslo', 2019),
    (11, 'Erik Vik', 'Stavanger', 2008),
    (12, 'Tora Eide', 'Oslo', 2022),
    (13, 'Finn Haug', 'Tromso', 2017),
    (14, 'Olga Petrova', 'Trondheim', 2013);

CREATE TABLE loan (
    loan_id INTEGER PRIMARY KEY,
    book_id INTEGER REFERENCES book (book_id),
    member_id INTEGER REFERENCES member (member_id),
    loan_date TEXT,
    days INTEGER
);
INSERT INTO loan VALUES
    (1, 22, 5, '2022-01-24', 22),
    (2, 7, 2, '2022-02-27', 37),
    (3, 2, 3, '2022-02-28', 16),
    (4, 18, 2, '2022-04-17', 26),
    (5, 8, 4, '2022-08-21', 28),
    (6, 22, 7, '2022-08-28', 38),
    (7, 2, 6, '2022-09-10', 8),
    (8, 5, 13, '2022-09-14', 13),
    (9, 13, 3, '2022-10-02', 42),
    (10, 7, 1, '2022-10-05', 37),
    (11, 2, 2, '2022-10-19', 28),
    (12, 1, 6, '2023-01-03', 30),
    (13, 11, 6, '2023-02-19', 39),
    (14, 16, 2, '2023-03-12', 17),
    (15, 21, 3, '2023-03-23', 18),
    (16, 8, 3, '2023-03-23', 35),
    (17, 2, 1, '2023-03-24', 18),
    (18, 18, 13, '2023-04-27', 28),
    (19, 9, 6, '2023-05-01', 12),
    (20, 1, 2, '2023-05-14', 12),
    (21, 22, 5, '2023-06-03', 17),
    (22, 13, 2, '2023-06-20', 26),
    (23, 18, 6, '2023-06-23', 25),
    (24, 8, 3, '2023-07-28', 38),
    (25, 1, 1, '2023-08-06', 10),
    (26, 3, 2, '2023-11-08', 3),
    (27, 10, 8, '2023-11-08', 42),
    (28, 4, 4, '2023-11-13', 17),
    (29, 6, 2, '2023-12-09', 33),
    (30, 8, 2, '2024-01-27', 39),
    (31, 8, 11, '2024-02-06', 31),
    (32, 12, 6, '2024-02-27', 8),
    (33, 22, 8, '2024-05-07', 41),
    (34, 13, 13, '2024-05-23', 27),
    (35, 21, 3, '2024-06-06', 42),
    (36, 3, 7, '2024-06-15', 40),
    (37, 1, 3, '2024-06-24', 31),
    (38, 17, 2, '2024-06-24', 4),
    (39, 18, 2, '2024-07-02', 7),
    (40, 9, 1, '2024-08-16', 33);
