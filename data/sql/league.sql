-- A football league: teams, coaches, players with their goals, and the games of an autumn.

CREATE TABLE team (
    team_id INTEGER PRIMARY KEY,
    name TEXT,
    city TEXT,
    founded INTEGER
);
INSERT INTO team VALUES
    (1, 'Rovers', 'Ashton', 1908),
    (2, 'United', 'Belford', 1921),
    (3, 'Falcons', 'Corby', 1987),
    (4, 'Harriers', 'Ashton', 1954),
    (5, 'Athletic', 'Dunmore', 1899),
    (6, 'Wanderers', 'Eastham', 1933),
    (7, 'Comets', 'Corby', 2004),
    (8, 'Albion', 'Farley', 1946);

CREATE TABLE coach (
    coach_id INTEGER PRIMARY KEY,
    name TEXT,
    team_id INTEGER REFERENCES team (team_id),
    since INTEGER
);
INSERT INTO coach VALUES
    (1, 'Nora Blake', 1, 2018),
    (2, 'Victor Hale', 2, 2021),
    (3, 'Simon Drew', 3, 2015),
    (4, 'Paula Grey', 7, 2020),
    (5, 'Marcus Bell', 5, 2011),
    (6, 'Rita Snow', 6, 2023),
    (7, 'Oscar Flint', 8, 2019);

CREATE TABLE player (
    player_id INTEGER PRIMARY KEY,
    name TEXT,
    team_id INTEGER REFERENCES team (team_id),
    position TEXT,
    age INTEGER,
    goals INTEGER
);
INSERT INTO player VALUES
    (1, 'Ben Archer', 1, 'goalkeeper', 34, 0),
    (2, 'Leo Bishop', 2, 'goalkeeper', 35, 0),
    (3, 'Max Carter', 3, 'goalkeeper', 25, 0),
    (4, 'Sam Draper', 4, 'goalkeeper', 26, 0),
    (5, 'Tom Ellis', 5, 'goalkeeper', 20, 0),
    (6, 'Jon Fisher', 6, 'goalkeeper', 26, 0),
    (7, 'Ray Glover', 7, 'goalkeeper', 35, 0),
    (8, 'Kit Hunter', 8, 'goalkeeper', 28, 0),
    (9, 'Dan Irwin', 1, 'defender', 25, 1),
    (10, 'Ian Joiner', 2, 'defender', 27, 1),
    (11, 'Gus Keeper', 3, 'defender', 33, 0),
    (12, 'Roy Lister', 4, 'defender', 25, 3),
    (13, 'Ned Mason', 5, 'defender', 33, 3),
    (14, 'Abe Nash', 6, 'defender', 29, 0),
    (15, 'Cal Ogden', 7, 'defender', 27, 3),
    (16, 'Dex Porter', 8, 'defender', 24, 0),
    (17, 'Eli Quinn', 1, 'midfielder', 32, 4),
    (18, 'Fin Reeve', 2, 'midfielder', 21, 5),
    (19, 'Hal Sawyer', 3, 'midfielder', 33, 3),
    (20, 'Jay Turner', 4, 'midfielder', 30, 1),
    (21, 'Ken Usher', 5, 'midfielder', 22, 4),
    (22, 'Lou Vance', 6, 'midfielder', 23, 1),
    (23, 'Mac Walker', 7, 'midfielder', 21, 8),
    (24, 'Pip Yates', 8, 'midfielder', 24, 3),
    (25, 'Rex Abbott', 1, 'forward', 27, 4),
    (26, 'Sid Barker', 2, 'forward', 32, 13),
    (27, 'Ted Cooper', 3, 'forward', 20, 3),
    (28, 'Vic Dyer', 4, 'forward', 31, 14),
    (29, 'Wes Foster', 5, 'forward', 29, 15),
    (30, 'Zak Hooper', 6, 'forward', 19, 5);

CREATE TABLE game (
    game_id INTEGER PRIMARY KEY,
    home_team_id INTEGER REFERENCES team (team_id),
    away_team_id INTEGER REFERENCES team (team_id),
    day TEXT,
    home_goals INTEGER,
    away_goals INTEGER,
    spectators INTEGER
);
INSERT INTO game VALUES
    (1, 6, 8, '2023-08-04', 3, 1, 20025),
    (2, 4, 5, '2023-08-07', 1, 0, 10365),
    (3, 8, 1, '2023-08-07', 0, 1, 14861),
    (4, 3, 8, '2023-08-09', 0, 0, 3253),
    (5, 2, 5, '2023-08-10', 2, 1, 11402),
    (6, 7, 5, '2023-08-13', 2, 1, 20520),
    (7, 3, 6, '2023-08-13', 1, 1, 9915),
    (8, 6, 1, '2023-08-14', 0, 1, 17770),
    (9, 8, 5, '2023-08-16', 2, 0, 11713),
    (10, 1, 3, '2023-08-25', 2, 1, 7972),
    (11, 2, 3, '2023-09-01', 3, 0, 11614),
    (12, 6, 2, '2023-09-01', 0, 2, 4482),
    (13, 7, 4, '2023-09-04', 4, 3, 12799),
    (14, 7, 2, '2023-09-12', 2, 0, 14121),
    (15, 5, 1, '2023-09-13', 1, 0, 11208),
    (16, 6, 5, '2023-09-15', 2, 3, 913),
    (17, 2, 7, '2023-09-16', 1, 0, 21394),
    (18, 8, 2, '2023-09-21', 0, 3, 4950),
    (19, 1, 2, '2023-09-21', 1, 2, 11178),
    (20, 6, 3, '2023-09-27', 4, 0, 15227),
    (21, 1, 6, '2023-10-05', 0, 0, 7304),
    (22, 4, 2, '2023-10-05', 0, 1, 8806),
    (23, 7, 3, '2023-10-08', 1, 3, 21412),
    (24, 6, 7, '2023-10-12', 2, 3, 7425),
    (25, 3, 7, '2023-10-14', 2, 3, 8653),
    (26, 5, 8, '2023-10-15', 2, 2, 2865),
    (27, 3, 2, '2023-10-19', 1, 1, 2450),
    (28, 2, 6, '2023-10-21', 1, 1, 19451),
    (29, 4, 3, '2023-10-27', 1, 2, 6841),
    (30, 4, 6, '2023-11-02', 0, 0, 12929),
    (31, 8, 7, '2023-11-03', 2, 3, 13721),
    (32, 4, 7, '2023-11-08', 1, 0, 6819),
    (33, 1, 4, '2023-11-12', 0, 1, 6715),
    (34, 8, 6, '2023-11-15', 1, 3, 14599),
    (35, 3, 4, '2023-11-22', 2, 0, 16639),
    (36, 8, 4, '2023-11-23', 4, 0, 6717),
    (37, 5, 3, '2023-11-26', 2, 1, 21663),
    (38, 2, 4, '2023-12-21', 3, 0, 19079),
    (39, 5, 2, '2023-12-23', 2, 0, 1747),
    (40, 1, 5, '2023-12-24', 1, 0, 21741);
