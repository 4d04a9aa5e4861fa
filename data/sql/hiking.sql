-- A hiking club: huts and trails by region, and the tours that its hikers made.

CREATE TABLE region (
    region_id INTEGER PRIMARY KEY,
    name TEXT,
    country TEXT
);
INSERT INTO region VALUES
    (1, 'Silver Range', 'Austria'),
    (2, 'Bear Valley', 'Slovenia'),
    (3, 'Upper Fells', 'Austria'),
    (4, 'Stone Coast', 'Croatia'),
    (5, 'Pine Basin', 'Slovenia'),
    (6, 'Wind Plateau', 'Italy');

CREATE TABLE hut (
    hut_id INTEGER PRIMARY KEY,
    name TEXT,
    region_id INTEGER REFERENCES region (region_id),
    altitude INTEGER,
    beds INTEGER
);
INSERT INTO hut VALUES
    (1, 'Eagle Hut', 1, 2310, 48),
    (2, 'Fox Hut', 1, 1875, 30),
    (3, 'Lake Lodge', 2, 1420, 64),
    (4, 'Cloud House', 3, 2650, 36),
    (5, 'Bear Refuge', 2, 1690, 22),
    (6, 'Moss Cabin', 5, 980, 12),
    (7, 'Summit House', 3, 2890, 54),
    (8, 'Gorge Hut', 5, 1150, 40),
    (9, 'Sea View', 4, 640, 28),
    (10, 'North Bivouac', 6, 2475, 8),
    (11, 'Old Mill', 6, 1240, 44);

CREATE TABLE trail (
    trail_id INTEGER PRIMARY KEY,
    name TEXT,
    region_id INTEGER REFERENCES region (region_id),
    length_km REAL,
    difficulty TEXT
);
INSERT INTO trail VALUES
    (1, 'Ridge Walk', 1, 18.5, 'hard'),
    (2, 'Fox Loop', 1, 9.2, 'medium'),
    (3, 'Lake Path', 2, 6.4, 'easy'),
    (4, 'Bear Traverse', 2, 22.0, 'hard'),
    (5, 'Glacier Route', 3, 14.8, 'hard'),
    (6, 'Meadow Way', 3, 7.5, 'easy'),
    (7, 'Cliff Track', 4, 12.1, 'medium'),
    (8, 'Pine Circle', 5, 10.6, 'medium'),
    (9, 'Gorge Trail', 5, 8.3, 'medium'),
    (10, 'Basin Crossing', 5, 16.9, 'hard'),
    (11, 'Plateau Tour', 6, 13.4, 'medium'),
    (12, 'Mill Walk', 6, 4.7, 'easy'),
    (13, 'Coast Line', 4, 19.6, 'hard');

CREATE TABLE hiker (
    hiker_id INTEGER PRIMARY KEY,
    name TEXT,
    age INTEGER,
    city TEXT
);
INSERT INTO hiker VALUES
    (1, 'Anna Huber', 34, 'Graz'),
    (2, 'Marko Zupan', 27, 'Ljubljana'),
    (3, 'Bella Ricci', 41, 'Trieste'),
    (4, 'Jonas Maier', 22, 'Graz'),
    (5, 'Petra Kos', 55, 'Ljubljana'),
    (6, 'Ivan Horvat', 38, 'Zagreb'),
    (7, 'Lea Wolf', 19, 'Vienna'),
    (8, 'Carlo Neri', 63, 'Trieste'),
    (9, 'Nina Babic', 30, 'Zagreb'),
    (10, 'Franz Ober', 47, 'Graz'),
    (11, 'Sara Vidmar', 25, 'Ljubljana'),
    (12, 'Emma Stein', 36, 'Vienna');

CREATE TABLE tour (
    tour_id INTEGER PRIMARY KEY,
    hiker_id INTEGER REFERENCES hiker (hiker_id),
    trail_id INTEGER REFERENCES trail (trail_id),
    year INTEGER,
    hours REAL
);
INSERT INTO tour VALUES
    (1, 8, 2, 2021, 2.7),
    (2, 7, 7, 2021, 3.2),
    (3, 5, 6, 2020, 1.8),
    (4, 1, 2, 2020, 2.3),
    (5, 5, 7, 2020, 3.6),
    (6, 6, 6, 2022, 2.5),
    (7, 2, 6, 2022, 2.1),
    (8, 2, 6, 2021, 1.8),
    (9, 9, 3, 2022, 2.2),
    (10, 1, 5, 2020, 3.9),
    (11, 4, 3, 2021, 1.6),
    (12, 9, 2, 2023, 2.4),
    (13, 3, 3, 2021, 1.5),
    (14, 2, 11, 2022, 3.2),
    (15, 2, 7, 2021, 4.2),
    (16, 4, 6, 2021, 2.2),
    (17, 3, 2, 2021, 3.5),
    (18, 5, 5, 2020, 4.5),
    (19, 5, 3, 2020, 2.3),
    (20, 10, 3, 2020, 2.3),
    (21, 2, 11, 2021, 4.3),
    (22, 1, 5, 2023, 3.6),
    (23, 2, 2, 2022, 2.5),
    (24, 7, 2, 2020, 2.3),
    (25, 2, 11, 2021, 3.1),
    (26, 6, 8, 2020, 2.9),
    (27, 2, 3, 2020, 1.9),
    (28, 3, 6, 2021, 2.0),
    (29, 1, 8, 2020, 2.4),
    (30, 2, 2, 2021, 2.5),
    (31, 5, 3, 2022, 1.8),
    (32, 2, 4, 2020, 5.0),
    (33, 1, 1, 2022, 5.2),
    (34, 2, 6, 2022, 2.7),
    (35, 9, 5, 2022, 4.1),
    (36, 9, 12, 2021, 1.2),
    (37, 11, 4, 2023, 5.6),
    (38, 1, 12, 2020, 1.1),
    (39, 1, 7, 2021, 3.6),
    (40, 1, 7, 2022, 2.9);
