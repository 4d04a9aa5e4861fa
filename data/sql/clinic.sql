-- A clinic: doctors, their patients, appointments with fees, and what was prescribed.

CREATE TABLE doctor (
    doctor_id INTEGER PRIMARY KEY,
    name TEXT,
    specialty TEXT,
    salary INTEGER
);
INSERT INTO doctor VALUES
    (1, 'Dr. Novak', 'cardiology', 98000),
    (2, 'Dr. Silva', 'pediatrics', 76000),
    (3, 'Dr. Chen', 'dermatology', 81000),
    (4, 'Dr. Adams', 'cardiology', 104000),
    (5, 'Dr. Rahimi', 'neurology', 112000),
    (6, 'Dr. Olsen', 'pediatrics', 72500),
    (7, 'Dr. Patel', 'general', 68000),
    (8, 'Dr. Grant', 'general', 70500),
    (9, 'Dr. Kovac', 'surgery', 125000);

CREATE TABLE patient (
    patient_id INTEGER PRIMARY KEY,
    name TEXT,
    birth_year INTEGER,
    city TEXT
);
INSERT INTO patient VALUES
    (1, 'Alan Reed', 1948, 'Dover'),
    (2, 'Beth Marsh', 2015, 'Kent'),
    (3, 'Carl Stone', 1962, 'Dover'),
    (4, 'Dina Frost', 1990, 'Ashford'),
    (5, 'Evan Cole', 2018, 'Dover'),
    (6, 'Faye Hill', 1975, 'Kent'),
    (7, 'Glen Ward', 1955, 'Ashford'),
    (8, 'Holly Pike', 2001, 'Dover'),
    (9, 'Iris Lane', 1983, 'Margate'),
    (10, 'Jack Boyd', 2012, 'Kent'),
    (11, 'Kate Rowe', 1969, 'Dover'),
    (12, 'Liam Nash', 1997, 'Ashford'),
    (13, 'Mona Tate', 1941, 'Margate'),
    (14, 'Ned Shaw', 1986, 'Kent'),
    (15, 'Olive Penn', 2009, 'Whitby');

CREATE TABLE appointment (
    appointment_id INTEGER PRIMARY KEY,
    doctor_id INTEGER REFERENCES doctor (doctor_id),
    patient_id INTEGER REFERENCES patient (patient_id),
    day TEXT,
    minutes INTEGER,
    fee REAL
);
INSERT INTO appointment VALUES
    (1, 5, 9, '2024-01-01', 10, 50.0),
    (2, 4, 7, '2024-01-13', 30, 145.0),
    (3, 2, 10, '2024-01-15', 10, 25.0),
    (4, 8, 6, '2024-01-19', 10, 20.0),
    (5, 1, 7, '2024-01-20', 60, 245.0),
    (6, 7, 9, '2024-01-23', 20, 50.0),
    (7, 2, 5, '2024-01-27', 60, 155.0),
    (8, 1, 13, '2024-01-27', 45, 190.0),
    (9, 2, 8, '2024-02-06', 20, 50.0),
    (10, 1, 1, '2024-02-13', 45, 190.0),
    (11, 2, 5, '2024-02-17', 10, 30.0),
    (12, 7, 8, '2024-03-03', 30, 65.0),
    (13, 4, 7, '2024-03-05', 45, 207.5),
    (14, 2, 2, '2024-03-07', 20, 50.0),
    (15, 1, 1, '2024-03-10', 60, 240.0),
    (16, 3, 9, '2024-03-11', 45, 140.0),
    (17, 8, 14, '2024-03-13', 15, 35.0),
    (18, 7, 14, '2024-03-26', 10, 30.0),
    (19, 4, 3, '2024-04-01', 15, 67.5),
    (20, 4, 7, '2024-04-03', 30, 140.0),
    (21, 1, 1, '2024-04-09', 60, 245.0),
    (22, 2, 5, '2024-04-12', 30, 75.0),
    (23, 7, 9, '2024-04-15', 30, 60.0),
    (24, 4, 3, '2024-04-28', 30, 135.0),
    (25, 5, 7, '2024-05-05', 20, 100.0),
    (26, 5, 11, '2024-05-08', 60, 305.0),
    (27, 2, 10, '2024-05-19', 15, 37.5),
    (28, 1, 13, '2024-06-15', 30, 130.0),
    (29, 6, 2, '2024-06-16', 15, 37.5),
    (30, 1, 3, '2024-06-16', 20, 80.0),
    (31, 7, 4, '2024-06-17', 10, 25.0),
    (32, 3, 4, '2024-06-18', 60, 190.0),
    (33, 4, 1, '2024-06-19', 60, 275.0),
    (34, 4, 13, '2024-06-23', 45, 202.5),
    (35, 7, 12, '2024-06-23', 45, 95.0),
    (36, 7, 8, '2024-06-25', 15, 35.0);

CREATE TABLE prescription (
    prescription_id INTEGER PRIMARY KEY,
    appointment_id INTEGER REFERENCES appointment (appointment_id),
    medicine TEXT,
    tablets INTEGER
);
INSERT INTO prescription VALUES
    (1, 2, 'aspirin', 30),
    (2, 4, 'ibuprofen', 14),
    (3, 5, 'metoprolol', 28),
    (4, 6, 'metoprolol', 60),
    (5, 9, 'aspirin', 28),
    (6, 10, 'metoprolol', 30),
    (7, 11, 'paracetamol', 30),
    (8, 13, 'aspirin', 28),
    (9, 14, 'metoprolol', 20),
    (10, 16, 'cetirizine', 14),
    (11, 18, 'ibuprofen', 60),
    (12, 20, 'metoprolol', 28),
    (13, 21, 'metoprolol', 30),
    (14, 25, 'amoxicillin', 10),
    (15, 26, 'amoxicillin', 10),
    (16, 27, 'ibuprofen', 14),
    (17, 28, 'metoprolol', 10),
    (18, 29, 'metoprolol', 14),
    (19, 30, 'metoprolol', 28),
    (20, 31, 'ibuprofen', 10),
    (21, 32, 'cetirizine', 20),
    (22, 33, 'metoprolol', 20),
    (23, 35, 'metoprolol', 28),
    (24, 36, 'cetirizine', 20);
